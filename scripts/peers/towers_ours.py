"""Our side of `scripts/parity-towers`: loads both towers, compares, and writes them back.

The gradients of the loss are compared array by array, in the names and shapes of their file.
"""

from __future__ import annotations

import json
import pathlib
import sys
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.contrastive import contrastive_model, trained_towers
from keras_vit.image_text.towers import Towers, arrays_of, load_towers, save_towers
from keras_vit.texts.tokenizer import load_tokenizer
from keras_vit.train.losses import ContrastiveLoss
from keras_vit.weights.formats import find_file, open_arrays


def main(folder: str) -> None:
    _compare_ids(pathlib.Path(folder) / "texts")
    for path in sorted(pathlib.Path(folder).glob("*/answers.npz")):
        answers = np.load(path)
        towers = load_towers(path.parent)
        found = {
            "image": towers.encode_images(answers["images"]),
            "text": towers.encode_texts(answers["ids"]),
            "logits": towers.logits(answers["images"], answers["ids"]),
        }
        worst = {key: np.abs(found[key] - answers[key]).max() for key in found}
        text = ", ".join(f"{key} {value:.1e}" for key, value in worst.items())
        largest = np.abs(answers["logits"]).max()
        print(f"{path.parent.name}: {text}, largest logit {largest:.1f}", flush=True)
        _check_baked(towers, answers["images"])
        try:
            save_towers(towers, f"{path.parent}-ours")
        except ValueError as error:  # a register with a position of its own
            print(f"  not written back: {error}", flush=True)
        _compare_gradients(towers, answers, path.parent)


def _compare_gradients(towers: Towers, answers: Any, folder: pathlib.Path) -> None:
    """Gradients of the loss of pairs, relative to the largest of their array.

    The exact gradient of some is 0, as of the bias of the keys: where none is 1e-4 of the largest
    of all arrays, that is the measure.
    """
    model = contrastive_model(towers)
    pairs = (answers["images"], answers["ids"][: len(answers["images"])])
    with tf.GradientTape() as tape:
        features = model([tf.constant(each) for each in pairs])
        kind = "softmax" if towers.bias is None else "sigmoid"
        loss = ContrastiveLoss(kind)(tf.zeros(len(pairs[0])), features)
    variables = [each.value for each in model.trainable_variables]
    found = tape.gradient(loss, variables, unconnected_gradients="zero")
    for variable, gradient in zip(variables, found, strict=True):
        variable.assign(tf.convert_to_tensor(gradient))
    gradients = arrays_of(trained_towers(model, towers))
    file = folder.with_name(f"{folder.name}-gradients")
    file = next(file.glob("open_clip*.safetensors"), file)
    with open_arrays(find_file(file) if file.is_dir() else file) as theirs:
        expected = {name: theirs.read(name) for name in theirs.entries}
    largest = max(np.abs(value).max() for value in expected.values())
    worst, where, other = 0.0, "", []
    if "temperature" in expected:  # of TIPS, the inverse of our scale
        step = -towers.scale * found[-1]
        gradients["temperature"] = ((), lambda: np.asarray(step))
    for name, value in expected.items():
        shape, make = gradients.get(name, ((), None))
        if make is None or shape != value.shape:
            other.append(name)
            continue
        own = np.abs(value).max()
        difference = np.abs(make() - value).max() / (own if own > 1e-4 * largest else largest)
        worst, where = max((worst, where), (float(difference), name))
    difference = abs(float(loss) - float(answers["loss"]))
    print(
        f"  loss {float(loss):.4f}, differs by {difference:.1e}; gradients of "
        f"{len(expected) - len(other)} arrays, largest relative difference {worst:.1e} ({where})"
        + (f"; not compared: {', '.join(other)}" if other else ""),
        flush=True,
    )


def _compare_ids(folder: pathlib.Path) -> None:
    """Ids of lines of our documents: the number of lines that differ, and the first."""
    found = json.loads((folder / "ids.json").read_text())
    lines = found["lines"]
    for name, file, pooling in (
        ("clip", "bpe_simple_vocab_16e6.txt.gz", "eot"),
        ("unigram", "unigram.model", "eot"),
        ("bpe", "bpe.model", "last"),
        ("tips", "tips.model", "mean"),
        ("bert", "bert/vocab.txt", "last"),
    ):
        length = {"clip": 77, "bert": 32}.get(name, 2048)
        clean = "open_clip" if name in ("clip", "bert") else "transformers"
        tokenizer = load_tokenizer(folder / file, length, pooling, clean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of long lines
            ids = tokenizer(lines)
        expected = found[name]
        if clean == "transformers":
            end = [] if tokenizer.end_id is None else [tokenizer.end_id]
            expected = [
                [*row, *end, *[tokenizer.pad_id] * (length - len(end) - len(row))]
                for row in expected
            ]
        other = [line for line, a, b in zip(lines, ids.tolist(), expected, strict=True) if a != b]
        print(f"{name}: ids of {len(lines)} lines, {len(other)} differ {other[:3]}", flush=True)


def _check_baked(towers: Towers, images: np.ndarray) -> None:
    """Logits of a baked head are those of both towers."""
    vectors = np.random.default_rng(2).normal(size=(3, towers.text.output_shape[-1]))
    towers.encode_texts = lambda texts: vectors[[ord(texts[0][0]) - 97]] * np.ones((1, 1))  # type: ignore[method-assign]
    model = zero_shot_classifier(towers, ["a", "b", "c"], ["{}"], activation=None)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = towers.scale * towers.encode_images(images) @ unit.T + (towers.bias or 0.0)
    worst = np.abs(model.predict(images, verbose=0) - expected).max()
    print(f"  baked head: largest difference {worst:.1e}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
