"""Our side of `scripts/parity-towers`: loads both towers, compares, and writes them back."""

from __future__ import annotations

import json
import pathlib
import sys
import warnings

import numpy as np

from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.tokenizer import load_tokenizer
from keras_vit.image_text.towers import Towers, load_towers, save_towers


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


def _compare_ids(folder: pathlib.Path) -> None:
    """Ids of lines of our documents: the number of lines that differ, and the first."""
    found = json.loads((folder / "ids.json").read_text())
    lines = found["lines"]
    for name, file, ends in (
        ("clip", "bpe_simple_vocab_16e6.txt.gz", True),
        ("unigram", "unigram.model", True),
        ("bpe", "bpe.model", False),
    ):
        length = 77 if name == "clip" else 1024
        tokenizer = load_tokenizer(
            folder / file, length, ends, "open_clip" if name == "clip" else "transformers"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of long lines
            ids = tokenizer(lines)
        expected = found[name]
        if name != "clip":
            expected = [
                [*row[: length - 1], tokenizer.end_id]
                + [tokenizer.pad_id] * (length - 1 - len(row))
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
