"""From a folder to a tested model with keras-hub. Run again, it continues after a crash."""

import keras
import keras_hub

SIZE, EPOCHS = 64, 100
read = keras.utils.image_dataset_from_directory
options = {"image_size": (SIZE, SIZE), "batch_size": 32}
train, held_out = read("photos", validation_split=0.2, subset="both", seed=0, **options)
names = train.class_names
steps = EPOCHS * train.cardinality().numpy()
move = keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomZoom(0.2)])
backbone = keras_hub.models.ViTBackbone(
    (SIZE, SIZE, 3), patch_size=8, num_layers=6, num_heads=3, hidden_dim=192, mlp_dim=768
)
images = keras.Input((SIZE, SIZE, 3))
scaled = keras.layers.Rescaling(1 / 127.5, -1)(images)
model = keras_hub.models.ViTImageClassifier(backbone, num_classes=len(names))
model = keras.Model(images, model(move(scaled)))
rate = keras.optimizers.schedules.CosineDecay(
    0.0, int(0.9 * steps), warmup_target=1e-3, warmup_steps=int(0.1 * steps)
)
model.compile(
    keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
best = keras.callbacks.ModelCheckpoint("best.keras", "val_accuracy", save_best_only=True)
resume = keras.callbacks.BackupAndRestore("states")
model.fit(train, validation_data=held_out, epochs=EPOCHS, callbacks=[best, resume])
model = keras.saving.load_model("best.keras")
print(model.evaluate(read("photos_test", shuffle=False, **options)))
new = read("new", labels=None, shuffle=False, **options)
for path, scores in zip(new.file_paths, model.predict(new), strict=True):
    print(path, names[scores.argmax()])
