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
    if case["what"] == "prompts":
        return compare_prompts(folder, case)
    if case["what"] == "texts":
        owl, ids = keras_vit.detection.load_open_vocabulary(folder), token_ids_of()[:-1]
        vars(owl)["tokenizer"] = lambda texts: ids
        model = owl.detector([f"text {number}" for number in range(len(ids))])
    else:
        any_size = (None, None, 3) if case["what"] == "boxes" else None
        model = keras_vit.from_pretrained(folder, input_shape=any_size)
    processor, rows, sizes = model.published["processor"], [], set()
    for name, boxes in case["boxes"].items():
        theirs = dict(np.load(folder / f"{name}.npz"))
        calls: list[tuple[Any, Any]] = []
        runs: Row = {"predict": model.predict, "predict_on_batch": model.predict_on_batch}
        chosen: list[Any] = []
        proposals = theirs.get("result/proposals")
        if proposals is not None:
            call = with_proposals(model, proposals, chosen)
            runs = {"predict_on_batch": as_arrays(call)}
        runs = {key: recorded(each, calls) for key, each in runs.items()}
        with mock.patch.multiple(model, **runs):  # type: ignore[call-overload]
            found = list(results_of(case, model, theirs, boxes))
        pixels, outputs = calls[0]
        steps = unprepared(theirs["pixels"], processor) - pixels
        relative = [
            relative_to(np.asarray(v), theirs[f"output/{THEIRS.get(k, k)}"])
            for k, v in outputs.items()
        ]
        row = {PIXELS: counted(abs(steps) > 1e-3), "steps": largest(steps), OUTPUTS: max(relative)}
        if proposals is not None:
            row["proposals in another place"] = counted(chosen[0] != proposals)
        if "gradients" in theirs:
            with tf.GradientTape() as tape:
                x = tf.constant(pixels, "float32")
                tape.watch(x)
                made = (model if proposals is None else call)(x)
                made = {k: v for k, v in made.items() if k != "objectness"}
                loss = sum(tf.reduce_mean(v**2) for v in made.values())
            row["gradients"] = gradient_row(tape.gradient(loss, x), theirs, processor)
        rows.append(merged([row, *found]))
        sizes.add(steps.shape[1:3])
        print(f"{folder.name}, {name}: {rows[-1]}", flush=True)
    return {"sizes": sorted(sizes), **merged(rows)}


def with_proposals(model: keras.Model, proposals: np.ndarray, chosen: list[Any]) -> Any:
    """A call of RF-DETR whose queries start where theirs do; adds its own choice to `chosen`.

    Each query learns its own features, and all attend to each other: two proposals whose scores are
    equal but for rounding and that change places would change every output a little.
    """
    choose = keras.ops.top_k

    def fixed(x: Any, k: int) -> Any:
        chosen.append(choose(x, k)[1].numpy())
        return None, tf.constant(proposals)

    def call(x: Any) -> Any:
        with mock.patch.object(keras.ops, "top_k", fixed):
            return model(x)

    return call


def as_arrays(call: Any) -> Any:
    """A call whose outputs are NumPy arrays."""
    return lambda x: {key: value.numpy() for key, value in call(x).items()}


def compare_prompts(folder: pathlib.Path, case: Row) -> Row:
    """As `compare`, for Segment Anything."""
    sam = keras_vit.segmentation.load_promptable(folder)
    config = sam.encoder.published["processor"]
    rows = []
    for name, prompts in case["prompts"].items():
        theirs = dict(np.load(folder / f"{name}.npz"))
        calls: list[tuple[Any, Any]] = []
        run = recorded(sam.encoder.predict_on_batch, calls)
        with mock.patch.object(sam.encoder, "predict_on_batch", run):
            embedded = sam.embed([theirs["picture"]])
        steps = unprepared(theirs["pixels"], config) - calls[0][0]
        pairs = [(embedded.embeddings.transpose(0, 3, 1, 2), theirs["output/embeddings"])]
        row, decoded = Row(), Row()
        before: Any = None
        for prompt, given in prompts.items():
            asked = {key.removeprefix("input_"): np.array(x)[0] for key, x in given.items()}
            if prompt.endswith("mask"):
                asked["masks"] = before
            found = sam.predict(embedded, **asked)
            pairs += [(found[key], theirs[f"output/{prompt} {key}"]) for key in found]
            before, decoded[prompt] = found["masks"][:, 0], sam.prepare_prompts(embedded, **asked)
            (whole,) = sam.resize_masks(found["masks"], embedded.sizes)
            differ = whole != theirs[f"result/{prompt}"]
            margin = theirs[f"result/{prompt} margin"]
            row = merged([row, class_row(differ, margin)])
        row |= {PIXELS: counted(abs(steps) > 1e-3), "steps": largest(steps)}
        row[OUTPUTS] = max(relative_to(*pair) for pair in pairs)
        if "gradients" in theirs:
            with tf.GradientTape() as tape:
                pixels = tf.constant(calls[0][0])
                tape.watch(pixels)
                given = {key: tf.constant(value) for key, value in decoded["box"].items()}
                inputs = {**given, "image_embeddings": sam.encoder(pixels)}
                loss = sum(tf.reduce_mean(x[:, 1:] ** 2) for x in sam.decoder(inputs).values())
            row["gradients"] = gradient_row(tape.gradient(loss, pixels), theirs, config)
        rows.append(row)
        print(f"{folder.name}, {name}: {rows[-1]}", flush=True)
    return {"sizes": [sam.image_size], **merged(rows)}


def unprepared(pixels: np.ndarray, processor: Row) -> np.ndarray:
    """Pixels in [0, 255], channels last, of those that a processor prepared."""
    mean, std = (np.array(processor[key]) for key in ("image_mean", "image_std"))
    scale = processor["rescale_factor"] if processor.get("do_rescale", True) else 1.0
    return (pixels.transpose(0, 2, 3, 1) * std + mean) / scale


def gradient_row(ours: Any, theirs: Row, processor: Row) -> float:
    """The difference of gradients, of which theirs are those of normalised pixels."""
    scale = processor["rescale_factor"] if processor.get("do_rescale", True) else 1.0
    expected = theirs["gradients"].transpose(0, 2, 3, 1) * scale / np.array(processor["image_std"])
    return relative_to(np.asarray(ours), expected)


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
    elif what == "instances":
        (objects,) = keras_vit.detection.predict_instances(model, [picture], case["object"])
        yield instance_row(objects, expected)
    elif what in ("boxes", "texts", "best boxes"):
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


def instance_row(found: Row, expected: Row) -> Row:
    """Pixels of another object, objects of another class, and scores."""
    infos = found["segments_info"], json.loads(str(expected["segments"]))
    scores = [np.array([each["score"] for each in info]) for info in infos]
    labels = [np.array([each["label_id"] for each in info]) for info in infos]
    return {
        "pixels of objects": counted(found["segmentation"] != expected["map"]),
        "objects": counted(labels[0] != labels[1]),
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
    from tests.models import test_group_prediction as groups
    from tests.models import test_set_prediction as boxes
    from tests.segmentation import test_mask_training as masks

    rows = []
    for case in boxes.CASES.values():
        loss, found = boxes.loss_and_gradients(case)
        keys = {"logits": "logits_gradient", "pred_boxes": "predicted_gradient"}
        parts = [relative_to(found[key], np.array(case[keys[key]])) for key in found]
        rows.append({"loss": abs(float(loss) / case["loss"] - 1), "gradients": max(parts)})
    points = mock.patch.object(tf.random, "uniform", lambda shape: tf.constant(points_of(shape)))
    with tempfile.TemporaryDirectory() as name, points:
        folder = pathlib.Path(name)
        both = masks.found_on_logits(), masks.found_in_training(folder / "eomt")
        fixed = [(*groups.loss_and_gradients(case), case) for case in groups.CASES.values()]
        trained = [
            (*groups.trained_loss_and_gradients(name, folder / name), case)
            for name, case in groups.GOLDEN_FILE["trained"].items()
        ]
    for found, theirs in zip(both, masks.EXPECTED.values(), strict=True):
        loss = found.pop("loss")
        rows.append(loss_row(loss, found, theirs["loss"], theirs))
    sets = [[loss_row(loss, found, case["loss"], case["gradients"]) for loss, found, case in each]
            for each in (fixed, trained)]  # fmt: skip
    return {
        "boxes of YOLOS, four cases": merged(rows[:-2]),
        "masks of EoMT, fixed logits": rows[-2],
        "masks of EoMT, a step with masked attention": rows[-1],
        f"RF-DETR, fixed outputs, {len(fixed)} cases": merged(sets[0]),
        "RF-DETR, a step of both classes": merged(sets[1]),
    }


def loss_row(loss: Any, gradients: Row, expected: float, expected_gradients: Row) -> Row:
    """Differences of a loss and of gradients, of which golden files keep some values."""
    parts = [0.0]
    for key, gradient in gradients.items():
        pair = chosen_values(np.asarray(gradient)), expected_gradients[key]
        parts.append(relative_to(*(np.array(each["values"]) for each in pair)))
    return {"loss": abs(float(loss) / expected - 1), "gradients": max(parts)}


INTRODUCTION = """{start}
## Dense networks

Written by `scripts/parity-dense` from `parity_dense.json`. Ten photographs of scikit-image pass
through the image processor, the network and the post-processing of transformers, and through
`predict_depth`, `predict_masks`, `predict_segments`, `predict_boxes`, `predict_instances`,
`estimate_poses` and a `PromptableSegmenter`. The networks are small, with weights by a formula;
image sizes and processors are those of the published files. "2 of 9" counts what differs; other
numbers are largest differences.

- Values: of prepared pixels, in all channels; one differs from 0.001 of the 255 steps on.
- Outputs and depth: relative to the largest value. What depth differs more than outputs comes from
  PyTorch, which computes positions of its bicubic resizing in float32.
- Gradients: of the first photograph's pixels, of the sum of the mean squares of outputs.
- Pixels of another class, mask or segment are those where rounding decides between two: logits are
  at most {margin:.1e} of the largest apart.
- Panoptic segments: with two thresholds.
- Masks of `SamModel`: of a point, of two points, of a box, and of a box with a point and the mask
  of the step before. OWL-ViT gets four rows of token ids.
- RF-DETR: where rounding decides which of two equal proposals comes first, every output changes,
  because each place has learned features of its own. So outputs and results are those of
  transformers' order; "proposals in another place" counts where ours differs. Its processor resizes
  in float32, not in steps of 8 bits.
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
