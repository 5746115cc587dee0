"""Writes an HTML report about a model: configuration, weights, cost and pictures."""

from __future__ import annotations

import dataclasses
import functools
import html
import io
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis import plots
from keras_vit.analysis.attention import attention_maps, attention_rollout, mean_attention_distance
from keras_vit.analysis.image_batches import displayed, image_batches
from keras_vit.analysis.learned_weights import patch_filters, position_similarity
from keras_vit.analysis.outliers import outlier_patches
from keras_vit.analysis.patch_features import principal_axes, project_patches, token_norms
from keras_vit.analysis.relevance import class_relevance
from keras_vit.evaluate.compute import training_memory
from keras_vit.evaluate.counting import StageCount, count_stages, describe_macs
from keras_vit.files import write_text
from keras_vit.models.graph import is_headless
from keras_vit.models.heads import class_probabilities
from keras_vit.progress import Progress
from keras_vit.report.page import (
    Section,
    human,
    human_bytes,
    render_bar,
    render_figure,
    render_page,
    render_table,
    render_tiles,
)

_SHOWN = 6  # images per picture


def write_report(
    model: keras.Model,
    path: str | os.PathLike[str],
    images: Any = None,
    class_names: Sequence[str] | None = None,
    task: str = "single_label",
    verbose: bool | int = True,
) -> pathlib.Path:
    """Writes one HTML page about a model, which needs no other file and no network.

    The page shows the model's configuration, its parameters, operations and memory stage by stage,
    the report of the loaded weights, and pictures: learned filters and position embeddings and,
    with images, attention maps and patch features. Pictures that do not apply to the model (a
    ResNet has no attention) are replaced by the reason.

    Args:
        model: A model of this package, or a functional model that contains one.
        path: The file to write, `.html`.
        images: Array of shape `(B, H, W, C)`, in the value range of the model, or an iterable of
            batches that can be read several times; only one batch is in memory. A few dozen images
            are enough; the pictures show the first six.
        class_names: Names of the classes or targets; `None` takes `model.class_names`.
        task: What the outputs are: `"single_label"`, `"multi_label"` or `"regression"`.
        verbose: Whether to print, now and then, how many sections are ready.

    Returns:
        The path.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model's cost cannot be counted, or `images` have the wrong shape or can
            be read only once.

    Example:

    >>> keras_vit.write_report(model, "report.html", images)
    PosixPath('report.html')
    """
    path = pathlib.Path(path)
    if images is not None and iter(images) is images:
        raise ValueError(
            "`images` are read several times, and an iterator can be read once. Pass an array, a "
            "list of batches, a tf.data.Dataset or `keras_vit.data.ImageFiles`."
        )
    class_names = class_names or getattr(model, "class_names", None)
    sections: list[Section] = []
    with Progress(f"report on {model.name}", None, "sections", verbose) as progress:
        for section in _sections(model, images, class_names, task):
            sections.append(section)
            progress.update(len(sections))
    write_text(path, render_page(model.name, sections), errors="backslashreplace")
    return path


def _sections(
    model: keras.Model, images: Any, class_names: Sequence[str] | None, task: str
) -> Iterator[Section]:
    stages = count_stages(model)
    yield Section("Model", _tiles(model, stages) + _configuration(model))
    yield Section("Weights", _weights(model))
    yield Section("Cost", _costs(model, stages))
    yield Section("Learned", _figures(_learned(model)))
    if images is not None:
        few = _first(images)
        shares = _probabilities(model, few, task)
        table, titles = "", None
        if shares is not None:
            tops = [_top(share, class_names, task) for share in shares]
            titles = [top[0] for top in tops]
            rows = [(str(i + 1), html.escape(", ".join(top))) for i, top in enumerate(tops)]
            what = "values of targets" if task == "regression" else "likeliest classes"
            table = render_table(("image", what), rows, "n")
        yield Section("On images", table + _figures(_looks(model, images, few, titles)))


def _first(images: Any) -> np.ndarray:
    """The first images, for the pictures."""
    every = itertools.chain.from_iterable(image_batches(images))
    return np.stack([*itertools.islice(every, _SHOWN)])


def _tiles(model: keras.Model, stages: list[StageCount]) -> str:
    tiles = [
        ("parameters", human(sum(stage.parameters for stage in stages))),
        ("multiply-accumulates an image", human(sum(stage.macs for stage in stages))),
        ("image", " x ".join(str(side) for side in model.inputs[0].shape[1:])),
        ("output", " x ".join(str(side) for side in model.outputs[0].shape[1:])),
        ("computes in", str(keras.dtype_policies.get(model.dtype_policy).compute_dtype)),
    ]
    return render_tiles(tiles)


def _configuration(model: keras.Model) -> str:
    config = getattr(model, "config", None)
    if config is None:
        layers = ", ".join(layer.name for layer in model.layers)
        return f"<p>A model of its own, of the layers {html.escape(layers)}.</p>"
    kind = type(config).__name__
    rows = []
    for owner in (config, *([config.block] if hasattr(config, "block") else [])):
        for field in dataclasses.fields(owner):
            value = getattr(owner, field.name)
            if field.name != "block" and value != field.default:
                rows.append((field.name, html.escape(str(value))))
    note = f"<p class='soft'>What differs from the defaults of <code>{kind}</code>.</p>"
    return note + render_table((), rows)


def _weights(model: keras.Model) -> str:
    report = getattr(model, "load_report", None)
    if report is None:
        return (
            "<p>No checkpoint was loaded in this session: the weights are those of the saved "
            "model, of training, or the random start.</p>"
        )
    return f"<pre>{html.escape(str(report))}</pre>"


def _costs(model: keras.Model, stages: list[StageCount]) -> str:
    most = max(1, *(stage.macs for stage in stages))
    counted = ("parameters", "macs", "activations")
    rows: list[tuple[str, ...]] = []
    for stage in stages:
        counts = [f"{getattr(stage, name):,}" for name in counted]
        rows.append((html.escape(stage.name), *counts, render_bar(stage.macs / most)))
    sums = [sum(getattr(stage, name) for stage in stages) for name in counted]
    rows.append(("<b>all</b>", *(f"<b>{each:,}</b>" for each in sums), ""))
    head = ("stage", "parameters", "multiply-accumulates", "kept for training", "")
    options = ((4, False), (4, True), (2, False), (2, True))  # bytes, and rematerialised
    memory = []
    for batch in (1, 8, 32, 128, 512):
        needed = (training_memory(model, batch, 2, *each).total for each in options)
        memory.append((str(batch), *map(human_bytes, needed)))
    policies = ("float32", "and rematerialised", "mixed precision", "and rematerialised")
    return (
        f"<p>Counted from the configuration: {describe_macs(stages)}. Blocks are listed with all "
        "tokens. What is kept for training are numbers "
        f"between the forward and the backward pass.</p>{render_table(head, rows, ' nnnb')}"
        "<p style='margin-top:1.4rem'>Estimated memory of a training step with Adam, by "
        f"images on the device.</p>{render_table(('images', *policies), memory, 'nnnnn')}"
    )


def _learned(model: keras.Model) -> dict[str, Callable[[], Any]]:
    """Figures of weights, by their captions."""
    return {
        "Principal components of the filters that read the image.": lambda: (
            plots.plot_patch_filters(patch_filters(model))
        ),
        "Cosine similarity of each position embedding (one tile) with all position embeddings.": (
            lambda: plots.plot_position_similarity(position_similarity(model))
        ),
    }


def _looks(
    model: keras.Model, images: Any, few: np.ndarray, titles: list[str] | None
) -> dict[str, Callable[[], Any]]:
    """Figures of images, by their captions."""
    pictures = displayed(model, few)
    outliers = functools.cache(lambda: outlier_patches(model, few))

    def maps(values: np.ndarray, what: str, *each_by_itself: bool) -> Any:
        return plots.plot_maps(pictures, values, what, titles, outliers(), *each_by_itself)

    return {
        "Attention rollout: how much each patch contributes to the pooled output.": lambda: (
            plots.plot_attention(pictures, attention_rollout(model, few), titles, outliers())
        ),
        "Attention in the last block, mean over heads; each map by itself.": lambda: maps(
            attention_maps(model, few).mean(axis=1), "attention", True
        ),
        "Relevance for the likeliest class, by the gradient of its logit; each map by itself.": (
            lambda: maps(class_relevance(model, few), "relevance", True)
        ),
        "Principal components of all patches: lightness, blue to yellow, green to red.": lambda: (
            plots.plot_components(
                pictures, project_patches(model, few, *principal_axes(model, images))
            )
        ),
        "Length of the patch tokens after the last block.": lambda: maps(
            token_norms(model, few), "length of token"
        ),
        "Mean attention distance of every head, over all images.": lambda: (
            plots.plot_attention_distance(mean_attention_distance(model, images))
        ),
    }


def _figures(draws: dict[str, Callable[[], Any]]) -> str:
    return "".join(_figure(caption, draw) for caption, draw in draws.items())


def _figure(caption: str, draw: Callable[[], Any]) -> str:
    """A picture embedded in the page, or the reason why this model has none."""
    try:
        figure = draw()
    except (ValueError, RuntimeError) as error:
        reason = str(error).split(". ")[0].rstrip(".")
        return f"<p class='soft'>{html.escape(caption)} Left out: {html.escape(reason)}.</p>"
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130)
    return render_figure(caption, data.getvalue())


def _probabilities(model: keras.Model, few: np.ndarray, task: str) -> np.ndarray | None:
    """The prediction of a model with a head, or `None` for a model of another kind."""
    if len(model.outputs) != 1 or len(model.outputs[0].shape) != 2 or is_headless(model):
        return None
    return class_probabilities(model, ops.convert_to_numpy(model(few, training=False)), task)


def _top(shares: np.ndarray, class_names: Sequence[str] | None, task: str) -> list[str]:
    is_value = task == "regression"
    names = class_names or [f"{'target' if is_value else 'class'} {i}" for i in range(len(shares))]
    if is_value:
        return [f"{name} {value:.4g}" for name, value in zip(names, shares, strict=True)][:3]
    return [f"{names[i]} {shares[i]:.1%}" for i in np.argsort(-shares)[:3]]
