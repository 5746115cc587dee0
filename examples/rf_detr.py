"""Fine-tunes RF-DETR on boxes of your own, in the layout of COCO or of YOLO.

    python examples/rf_detr.py hf://Roboflow/rf-detr-base DATA

DATA has `train/_annotations.coco.json` and `test/_annotations.coco.json` next to their images, or
`images/train`, `labels/train`, `images/test`, `labels/test` and `classes.txt`, or is a clone of
https://github.com/Shenggan/BCCD_Dataset (364 images of blood cells, MIT). The checkpoint is Apache
2.0; its classes are replaced. Prints COCO's mean average precision on the test images. Run it again
after an interruption, and training continues. Needs the packages of
`keras-vision-transformer[detection]`.
"""

from __future__ import annotations

import argparse
import pathlib

import keras

import keras_vit
from keras_vit import detection


def read(data, part):
    """The images of a part, and their boxes."""
    if (data / "BCCD").exists():
        from dense_networks import read_cells  # of this folder

        return read_cells(data, "trainval" if part == "train" else part)
    if (data / "classes.txt").exists():
        names = (data / "classes.txt").read_text().split("\n")
        return detection.read_yolo_boxes(data / "images" / part, list(filter(None, names)))
    return detection.read_coco_boxes(data / part / "_annotations.coco.json")


def fine_tune(model, boxes, folder, epochs, batch_size=4):
    """Trains with the settings of the authors: blocks learn more slowly the earlier they stand."""
    batches = detection.box_batches(boxes, model, batch_size, training=True)
    optimizer = keras_vit.train.AdamW(
        keras.optimizers.schedules.CosineDecay(1e-4, epochs * len(batches)),
        rate_factors=keras_vit.train.layerwise_decay(model, 0.8),
        decay_kernels_only=True, weight_decay=1e-4, global_clipnorm=0.1,
    )  # fmt: skip
    model.compile(optimizer)
    resume = keras_vit.ResumeTraining(folder / "states")
    return model.fit(batches, epochs=epochs, shuffle=False, callbacks=[resume])


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="folder or address of RF-DETR")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/rf_detr"))
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(words)
    keras.utils.set_random_seed(0)
    train, test = read(options.data, "train"), read(options.data, "test")
    model = keras_vit.from_pretrained(options.checkpoint, classes=train.num_classes)
    model.class_names = train.class_names
    losses = fine_tune(model, train, options.output, options.epochs).history["loss"]
    result = detection.evaluate_boxes(model, test)
    print(result)
    model.save(options.output / "detector.keras")  # for `keras-vit detect` and the exports
    return losses, result


if __name__ == "__main__":
    main()
