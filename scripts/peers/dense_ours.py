"""Compares what this package makes of photographs with what transformers made of them.

The second half of `scripts/parity-dense`; `scripts/peers/dense_theirs.py` writes the cases. Writes
docs/parity_dense.json and a section of docs/parity.md.
"""

from __future__ import annotations

import datetime
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from scripts.golden.network_formula import (
    SEGMENT_TASKS,
    chosen_values,
    points_of,
    token_ids_of,
)
from scripts.peers.parity_ours import our_versions
from scripts.peers.sweep_ours import PAGE
from scripts.peers.sweep_ours import START as SWEEP

START, END = "<!-- dense -->", "<!-- end of dense -->"
RESULTS = PAGE.with_name("parity_dense.json")
PADDED, MARGIN = "classes of stretched pixels", "margin"  # what the notes of the page state
THEIRS = {"boxes": "pred_boxes", "objectness": "objectness_logits"}  # outputs of OWL-ViT
PIXELS, OUTPUTS = "values", "outputs"
# By names the largest difference, or how many differ and of how many.
Row = dict[str, Any]


def compare(folder: pathlib.Path, case: Row) -> Row:
    """Differences of a case over all photographs."""
    if case["what"] == "texts":
        owl, ids = keras_vit.detection.load_open_vocabulary(folder), token_ids_of()[:-1]
        vars(owl)["tokenizer"] = lambda texts: ids
        model = owl.detector([f"text {number}" for number in range(len(ids))])
    else:
        any_size = (None, None, 3) if case["what"] == "boxes" else None
        model = keras_vit.from_pretrained(folder, input_shape=any_size)
    processor, rows, sizes = model.published["processor"], [], set()
    mean, std = (np.array(processor[key]) for key in ("image_mean", "image_std"))
    scale = processor["rescale_factor"] if processor["do_rescale"] else 1.0
    for name, boxes in case["boxes"].items():
        theirs = dict(np.load(folder / f"{name}.npz"))
        calls: list[tuple[Any, Any]] = []
        with mock.patch.multiple(
            model,
            predict=recorded(model.predict, calls),
            predict_on_batch=recorded(model.predict_on_batch, calls),
        ):
            found = list(results_of(case, model, theirs, boxes))
        pixels, outputs = calls[0]
        steps = (theirs["pixels"].transpose(0, 2, 3, 1) * std + mean) / scale - pixels
        relative = [
            relative_to(np.asarray(v), theirs[f"output/{THEIRS.get(k, k)}"])
            for k, v in outputs.items()
        ]
        row = {PIXELS: counted(abs(steps) > 1e-3), "steps": largest(steps), OUTPUTS: max(relative)}
        rows.append(merged([row, *found]))
        sizes.add(steps.shape[1:3])
        print(f"{folder.name}, {name}: {rows[-1]}", flush=True)
    return {"sizes": sorted(sizes), **merged(rows)}


def recorded(run: Any, calls: list) -> Any:
    """Keeps what the model gets, and returns."""

    def call(x: Any, *args: Any, **options: Any) -> Any:
        calls.append((x, run(x, *args, **options)))
        return calls[-1][1]

    return call


def results_of(case: Row, model: keras.Model, theirs: Row, boxes: Any) -> Iterator[Row]:
    """Differences of the results for one photograph."""
    picture, what = theirs["picture"], case["what"]
    expected = {key[7:]: value for key, value in theirs.items() if key.startswith("result/")}
    if what == "depth":
        (depth,) = keras_vit.depth.predict_depth(model, [picture])
        yield {"depth": relative_to(depth, expected["depth"])}
    elif what in ("boxes", "texts"):
        (found,) = keras_vit.detection.predict_boxes(model, [picture], case["threshold"])
        yield {"labels": counted(found.labels != expected["labels"])}
        yield {"pixels of boxes": largest(found.boxes - expected["boxes"])}
        yield {"scores": largest(found.scores - expected["scores"])}
    elif what == "poses":
        poses = [keras_vit.pose.estimate_poses(model, [picture], [boxes], pairs)[0]
                 for pairs in (None, case["flip_pairs"])]  # fmt: skip
        apart = [np.concatenate(x) - expected[key] for key, x in
                 zip(("keypoints", "scores"), zip(*poses, strict=True), strict=True)]  # fmt: skip
        yield {"keypoints": counted(abs(apart[0]).max(-1) >= 1)}
        yield {"pixels of keypoints": largest(apart[0]), "scores": largest(apart[1])}
    elif what == "masks":
        class_map = keras_vit.segmentation.predict_masks(model, picture)
        yield class_row(class_map != expected["map"], expected["margin"])
    else:
        (found,) = keras_vit.segmentation.predict_segments(model, [picture], "semantic")
        differ, is_whole = found != expected["map"], "panoptic" in expected
        if is_whole and picture.shape[0] != picture.shape[1]:
            yield {PADDED: counted(differ)}
        else:
            yield class_row(differ, expected["margin"])
        for name in SEGMENT_TASKS.keys() & expected.keys():
            yield segment_row(model, SEGMENT_TASKS[name], picture, name, expected)


def class_row(differ: np.ndarray, margin: np.ndarray) -> Row:
    """Pixels of another class, and how far apart their two largest logits are at most."""
    return {"pixels": counted(differ), MARGIN: largest(margin[differ].astype("float64"))}


def segment_row(model: Any, case: Row, picture: np.ndarray, name: str, expected: Row) -> Row:
    """Pixels of another segment, segments of another class, and scores."""
    task = case["task"]
    (found,) = keras_vit.segmentation.predict_segments(model, [picture], task, **case["ours"])
    infos = found["segments_info"], json.loads(str(expected[f"{name}/segments"]))
    scores = [np.array([each.pop("score") for each in info]) for info in infos]
    differ = [one != other for one, other in itertools.zip_longest(*infos)]
    return {
        f"{task} pixels": counted(found["segmentation"] != expected[name]),
        f"{task} segments": counted(np.array(differ, bool)),
        "scores": largest(scores[0] - scores[1]),
    }


def largest(values: np.ndarray) -> float:
    """The largest absolute value, 0 of none."""
    return float(np.abs(values).max(initial=0))


def counted(differ: np.ndarray) -> list[int]:
    return [int(differ.sum()), differ.size]


def relative_to(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, relative to the largest value."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return largest(ours - theirs) / (largest(theirs) or 1.0)


def merged(rows: list[Row]) -> Row:
    """The largest differences, and sums of counts."""
    found: Row = {}
    for key, value in itertools.chain.from_iterable(row.items() for row in rows):
        if isinstance(value, list):
            found[key] = np.add(found.get(key, [0, 0]), value).tolist()
        else:
            found[key] = max(found.get(key, 0.0), value)
    return found


def compare_losses() -> dict[str, Row]:
    """Relative differences of losses and gradients on the inputs of tests/golden."""
    from tests.models import test_set_prediction as boxes
    from tests.segmentation import test_mask_training as masks

    rows = []
    for case in boxes.CASES.values():
        loss, found = boxes.loss_and_gradients(case)
        keys = {"logits": "logits_gradient", "pred_boxes": "predicted_gradient"}
        parts = [relative_to(found[key], np.array(case[keys[key]])) for key in found]
        rows.append({"loss": abs(float(loss) / case["loss"] - 1), "gradients": max(parts)})
    points = mock.patch.object(tf.random, "uniform", lambda shape: tf.constant(points_of(shape)))
    with tempfile.TemporaryDirectory() as folder, points:
        both = masks.found_on_logits(), masks.found_in_training(pathlib.Path(folder))
    for found, theirs in zip(both, masks.EXPECTED.values(), strict=True):
        row = {"loss": abs(found.pop("loss") / theirs["loss"] - 1), "gradients": 0.0}
        for key, value in found.items():
            pair = chosen_values(np.asarray(value)), theirs[key]
            part = relative_to(*(np.array(each["values"]) for each in pair))
            row["gradients"] = max(row["gradients"], part)
        rows.append(row)
    return {
        "boxes of YOLOS, four cases": merged(rows[:-2]),
        "masks of EoMT, fixed logits": rows[-2],
        "masks of EoMT, a step with masked attention": rows[-1],
    }


INTRODUCTION = """{start}
## Dense networks

Written by `scripts/parity-dense` from `parity_dense.json`. Ten photographs of scikit-image pass
through the image processor, the network and the post-processing of transformers, and through
`predict_depth`, `predict_masks`, `predict_segments`, `predict_boxes` and `estimate_poses`. The
networks are small, with weights by a formula; image sizes and processors are those of the published
files. "2 of 9" counts what differs; other numbers are largest differences.

- Values: of prepared pixels, in all channels; one differs from 0.001 of the 255 steps on.
- Outputs and depth: relative to the largest value. What depth differs more than outputs comes from
  PyTorch, which computes positions of its bicubic resizing in float32.
- Pixels of another class or segment are those where rounding decides between two: logits of classes
  are at most {margin:.1e} of the largest apart.
- Panoptic segments: with two thresholds.
- Keypoints: of three boxes, two of them partly outside, with and without the mirrored crop; one
  differs from 1 pixel on.
- EoMT on whole images: transformers stretches the class map of the filled square over the
  photograph, while `predict_segments` cuts the filling off. Classes are compared on square
  photographs; on the others, {padded} pixels of both networks have another one.
- Pixels beyond whole patches are cut off by transformers. Here the mean colour fills the last patch
  up. Published processors give whole patches.

| class | images in pixels | values that differ | outputs | results |
|---|---|---|---|---|"""


def page(results: Row) -> str:
    """The section of docs/parity.md."""
    whole = merged(
        [{k: v for k, v in x.items() if k != "sizes"} for x in results["cases"].values()]
    )
    padded = "{:,} of {:,}".format(*whole[PADDED])
    lines = [INTRODUCTION.format(start=START, margin=whole[MARGIN], padded=padded)]
    for title, row in results["cases"].items():
        name, comma, rest = title.partition(",")
        sizes = [f"{height} x {width}" for height, width in row["sizes"]]
        texts = {key: shown(value) for key, value in row.items() if key != "sizes"}
        left_out = (PIXELS, OUTPUTS, "steps", MARGIN, PADDED)
        images = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}"
        cells = [f"`{name}`{comma}{rest}", images, texts[PIXELS], texts[OUTPUTS]]
        cells.append("; ".join(f"{k} {v}" for k, v in texts.items() if k not in left_out))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Losses on the inputs of tests/golden, relative to the largest value:", "",
              "| loss of | loss | gradients |", "|---|---|---|"]  # fmt: skip
    for title, row in results["losses"].items():
        lines.append(f"| {title} | {shown(row['loss'])} | {shown(row['gradients'])} |")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join([*lines, "", f"{results['date']}: {versions}.", END]) + "\n"


def shown(value: Any) -> str:
    return "{:,} of {:,}".format(*value) if isinstance(value, list) else f"{value:.1e}"


def main() -> None:
    """Compares all cases, and writes; or compares those whose titles have one of the words."""
    root, *words = sys.argv[1:]
    results: Row = {"date": datetime.date.today().isoformat(), "cases": {}}
    for folder in sorted(pathlib.Path(root).iterdir()):
        if not words or any(word in folder.name for word in words):
            case = json.loads((folder / "case.json").read_text())
            results["versions"] = {**our_versions(), **case["versions"]}
            results["cases"][folder.name] = compare(folder, case)
            keras.backend.clear_session()
    if words:
        return
    results["losses"] = compare_losses()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    head, mark, rest = PAGE.read_text().partition(SWEEP)
    section = f"{head.partition(START)[0].rstrip()}\n\n{page(results)}"
    PAGE.write_text(section + (f"\n{mark}{rest}" if mark else ""))


if __name__ == "__main__":
    main()
