"""Fine-tunes the mask decoder of Segment Anything on images with masks, asked by boxes.

    python examples/prompt_finetuning.py hf://facebook/sam-vit-base IMAGES MASKS classes.txt

The encoder stays as it is and sees every image once. Boxes around the masks are the prompts, and
the loss is that of the paper: 20 times the focal loss plus the dice loss, and the error of the
scores. Prints the mean IoU on held-out images before and after, and writes `sam-trained`.
"""

from __future__ import annotations

import argparse
import pathlib

import keras
import numpy as np

from keras_vit.segmentation import (
    build_prompt_trainer,
    load_promptable,
    prompt_batches,
    read_masks,
)


def mean_iou(trainer, batches):
    """Mean IoU of the predicted masks, in the size of the logits."""
    shares = []
    for inputs, masks in batches:
        found = trainer.predict_on_batch(inputs)["masks"][:, 0] > 0
        both, either = found & (masks == 1), found | (masks == 1)
        shares += list(np.sum(both, (1, 2)) / np.maximum(np.sum(either, (1, 2)), 1))
    return float(np.mean(shares))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", help="a folder or an address of Segment Anything")
    parser.add_argument("images")
    parser.add_argument("masks", help="folder of PNG masks of the same names")
    parser.add_argument("classes", help="text file with one class per line")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", default="sam-trained")
    options = parser.parse_args(arguments)

    names = pathlib.Path(options.classes).read_text(encoding="utf-8").split()
    training, held_out = read_masks(options.images, options.masks, names).split(0.2)
    segmenter = load_promptable(options.weights)
    trainer = build_prompt_trainer(segmenter)
    trainer.compile(keras.optimizers.AdamW(options.learning_rate, weight_decay=0.01, clipnorm=1.0))
    batches = prompt_batches(segmenter, training)
    checked = prompt_batches(segmenter, held_out, seed=None)
    before = mean_iou(trainer, checked)
    trainer.fit(batches, validation_data=checked, epochs=options.epochs, shuffle=False, verbose=2)
    segmenter.save_pretrained(options.output)
    print(f"mean IoU {before:.1%} before, {mean_iou(trainer, checked):.1%} after: {options.output}")


if __name__ == "__main__":
    main()
