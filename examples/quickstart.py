"""Trains a Vision Transformer on real images, plots its attention, and exports it.

    scripts/quickstart        in a new environment, or: python examples/quickstart.py

The images are the 1,797 handwritten digits of scikit-learn (8 x 8 pixels); a fifth of each class is
held out. Weight decay and epochs were chosen on the split of seed 0; the accuracy that is printed
is therefore of the split of seed 1. Takes 2 minutes on two cores and reaches 98 %.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit

BATCH_SIZE = 64
NEXT = """With your own images, in one folder per class:
  data = keras.utils.image_dataset_from_directory("photos", image_size=(224, 224))
  model = keras_vit.ViTS16(weights="augreg_in21k", classes=len(data.class_names))
  model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True)); model.fit(data)"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/quickstart"))
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--split", type=int, default=1, help="seed that chooses the held-out images"
    )
    parser.add_argument("--smoke", action="store_true", help="2 blocks, 2 epochs, 140 images")
    args = parser.parse_args()
    start = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)

    train_x, test_x, train_y, test_y = read_digits(args.split)
    if args.smoke:
        train_x, train_y, args.epochs = train_x[:140], train_y[:140], 2
    model = build_model(depth=2 if args.smoke else 4)
    fit(model, (train_x, train_y), (test_x, test_y), args.epochs)
    trained = time.perf_counter() - start
    logits = model.predict(test_x, batch_size=len(test_x), verbose=0)
    draw(model, test_x, test_y, logits, args.output)
    report = {
        "accuracy": float(np.mean(logits.argmax(-1) == test_y)),
        "seed": args.seed,
        "split": {"seed": args.split, "train": len(train_x), "held_out": len(test_x)},
        "epochs": args.epochs,
        "parameters": model.count_params(),
        "files": ship(model, test_x, logits, args.output),
        "seconds": {"training": trained, "total": time.perf_counter() - start},
        "versions": {"python": sys.version.split()[0]}
        | {module.__name__: module.__version__ for module in (keras_vit, keras, tf, np)},
    }
    (args.output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(
        f"Accuracy on {len(test_x)} held-out images: {report['accuracy']:.2%}, "
        f"seed {args.seed}, split {args.split}"
    )
    for name, file in report["files"].items():
        print(f"{name} loaded without keras_vit: {file['bytes'] / 1e6:.2f} MB, logits differ by at")
        print(f"  most {file['max_difference']:.1e}, same answer for {file['agreement']:.1%}")
    print(f"predictions.png, model.keras and report.json are in {args.output}.\n{NEXT}")


def read_digits(split):
    """Reads pixels in [0, 255], `(B, 8, 8, 1)`, and labels: train_x, test_x, train_y, test_y."""
    digits = load_digits()
    images = digits.images[..., None].astype("float32") * (255 / 16)  # 0 to 16 in scikit-learn
    options = {"test_size": 0.2, "stratify": digits.target, "random_state": split}
    return train_test_split(images, digits.target, **options)


def build_model(depth):
    size = {"width": 64, "depth": depth, "num_heads": 4, "mlp_dim": 128}
    images = {"patch_size": 2, "image_size": 8, "channels": 1, "classes": 10}
    # Fixed position embeddings: there are too few images to learn them.
    config = keras_vit.make_config(**size, **images, position_embedding="sincos_2d")
    return keras_vit.build_vit(config, name="digits")


def fit(model, train, test, epochs):
    """Trains with AdamW, warm-up and cosine decay, on digits shifted by up to one pixel."""
    # By whole pixels: interpolation would blur the training images, but not the test images.
    move = keras.layers.RandomTranslation(
        1 / 8, 1 / 8, fill_mode="constant", interpolation="nearest"
    )
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]))
    data = data.batch(BATCH_SIZE, drop_remainder=True)
    data = data.map(lambda images, digits: (move(images, training=True), digits)).prefetch(2)
    steps = epochs * len(data)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=steps // 10
    )
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.5, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    bar = keras.utils.Progbar(epochs, unit_name="epoch", stateful_metrics=names)

    def show_epoch(epoch, logs):
        if sys.stdout.isatty():
            bar.update(epoch + 1, list(logs.items()))
        elif (epoch + 1) % 10 == 0 or epoch + 1 == epochs:  # a bar fills files with control codes
            values = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
            print(f"epoch {epoch + 1}/{epochs}  {values}", flush=True)

    show = keras.callbacks.LambdaCallback(on_epoch_end=show_epoch)
    options = {"shuffle": False, "verbose": 0, "validation_batch_size": len(test[0])}
    model.fit(data, epochs=epochs, validation_data=test, callbacks=[show], **options)


def draw(model, images, digits, logits, output):
    """Writes predictions.png: images with attention rollout, mistakes first."""
    answers = logits.argmax(-1)
    shown = np.argsort(answers == digits, kind="stable")[:10]
    titles = [
        f"{a}" if a == d else f"{a}, but is {d}" for a, d in zip(answers, digits, strict=True)
    ]
    enlarged = np.clip(keras.ops.image.resize(images[shown], (128, 128), "bicubic"), 0, 255)
    rollout = keras_vit.analysis.attention_rollout(model, images[shown])
    sheet = keras_vit.analysis.plot_attention(enlarged, rollout, [titles[i] for i in shown])
    sheet.savefig(output / "predictions.png", dpi=120)


def ship(model, images, logits, output):
    """Exports the model, and runs the exported files in a process without keras_vit."""
    model.save(output / "model.keras")
    (output / "model.tflite").unlink(missing_ok=True)  # from an earlier run
    exports = [
        keras_vit.export_saved_model(model, output / "saved_model", images=images),
        keras_vit.export_litert(model, output / "model.tflite", images=images),
    ]
    np.savez(output / "held_out.npz", images=images, logits=logits)
    command = [sys.executable, str(pathlib.Path(__file__).with_name("run_exports.py"))]
    command += map(str, [output / "held_out.npz", *(export.path for export in exports)])
    results = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        export.path.relative_to(output).as_posix(): {"bytes": export.size, **result}
        for export, result in zip(exports, results, strict=True)
    }


if __name__ == "__main__":
    main()
