"""Writes an HTML report about a model: configuration, weights, cost and pictures."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis import plots
from keras_vit.analysis.attention_maps import (
    attention_maps,
    attention_rollout,
    mean_attention_distance,
)
from keras_vit.analysis.image_batches import displayed, image_batches
from keras_vit.analysis.learned_weights import patch_filters, position_similarity
from keras_vit.analysis.patch_features import principal_axes, project_patches, token_norms
from keras_vit.analysis.relevance import class_relevance
from keras_vit.evaluate.compute import training_memory
from keras_vit.evaluate.counting import StageCount, count_stages
from keras_vit.models.heads import class_probabilities

_SHOWN = 6  # images per picture
_STYLE = """
:root { --ink: #20242b; --soft: #5b6770; --line: #e3e6ea; --accent: #2a6fbb; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 68rem; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; background: #fff; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.8rem 0 .4rem;
  padding-top: 1rem; border-top: 1px solid var(--line); }
p { margin: .3rem 0 .9rem; max-width: 46rem; } .soft, figcaption { color: var(--soft); }
nav a { margin-right: 1.1rem; } a { color: var(--accent); text-decoration: none; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.tile { border: 1px solid var(--line); border-radius: .6rem; padding: .7rem 1rem; min-width: 9rem; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.bar { width: 12rem; vertical-align: middle; } td.bar i { display: block; height: .65rem;
  border-radius: .2rem; background: var(--accent); min-width: 1px; }
pre { background: #f5f6f8; padding: .8rem 1rem; border-radius: .5rem; overflow-x: auto;
  white-space: pre-wrap; } figure { margin: 1rem 0 1.6rem; }
figure img { max-width: 100%; height: auto; display: block; }
"""


def write_report(
    model: keras.Model,
    path: str | os.PathLike[str],
    images: Any = None,
    class_names: Sequence[str] | None = None,
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
        class_names: Names of the classes.

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
    sections = list(_sections(model, images, class_names))
    path.write_text(_page(model.name, sections), encoding="utf-8")
    return path


@dataclasses.dataclass(frozen=True)
class _Section:
    title: str
    body: str

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


def _sections(
    model: keras.Model, images: Any, class_names: Sequence[str] | None
) -> Iterator[_Section]:
    stages = count_stages(model)
    yield _Section("Model", _tiles(model, stages) + _configuration(model))
    yield _Section("Weights", _weights(model))
    yield _Section("Cost", _costs(model, stages))
    yield _Section("Learned", "".join(_learned(model)))
    if images is not None:
        few = _first(images)
        body = _predictions(model, few, class_names) + "".join(_looks(model, images, few))
        yield _Section("On images", body)


def _first(images: Any) -> np.ndarray:
    """The first images, for the pictures."""
    few: list[np.ndarray] = []
    for batch in image_batches(images):
        few.extend(batch[: _SHOWN - len(few)])
        if len(few) == _SHOWN:
            break
    return np.stack(few)


def _page(title: str, sections: list[_Section]) -> str:
    links = "".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}"><h2>{html.escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    title = html.escape(title)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title}</h1><nav>{links}</nav>{body}</body></html>\n"
    )


def _tiles(model: keras.Model, stages: list[StageCount]) -> str:
    macs = sum(stage.macs for stage in stages)
    tiles = [
        ("parameters", human(sum(stage.parameters for stage in stages))),
        ("multiply-accumulates an image", human(macs)),
        ("image", " x ".join(str(side) for side in model.inputs[0].shape[1:])),
        ("output", " x ".join(str(side) for side in model.outputs[0].shape[1:])),
        ("computes in", str(keras.dtype_policies.get(model.dtype_policy).compute_dtype)),
    ]
    return '<div class="tiles">{}</div>'.format(
        "".join(f'<div class="tile"><b>{html.escape(b)}</b>{a}</div>' for a, b in tiles)
    )


def _configuration(model: keras.Model) -> str:
    config = getattr(model, "config", None)
    if config is None:
        layers = ", ".join(layer.name for layer in model.layers)
        return f"<p>A model of its own, of the layers {html.escape(layers)}.</p>"
    kind = type(config).__name__
    rows = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            rows.append(f"<tr><td>{field.name}</td><td>{html.escape(str(value))}</td></tr>")
    note = f"<p class='soft'>What differs from the defaults of <code>{kind}</code>.</p>"
    return f"{note}<div class='scroll'><table>{''.join(rows)}</table></div>"


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
    rows = "".join(
        f"<tr><td>{html.escape(stage.name)}</td><td class='n'>{stage.parameters:,}</td>"
        f"<td class='n'>{stage.macs:,}</td><td class='n'>{stage.activations:,}</td>"
        f"<td class='bar'>{_bar(stage.macs / most)}</td></tr>"
        for stage in stages
    )
    total = (
        f"<tr><th>all</th><th class='n'>{sum(s.parameters for s in stages):,}</th>"
        f"<th class='n'>{sum(s.macs for s in stages):,}</th>"
        f"<th class='n'>{sum(s.activations for s in stages):,}</th><th></th></tr>"
    )
    head = (
        "<tr><th>stage</th><th class='n'>parameters</th><th class='n'>multiply-accumulates</th>"
        "<th class='n'>kept for training</th><th></th></tr>"
    )
    memory = "".join(
        f"<tr><td class='n'>{batch}</td>"
        + "".join(
            f"<td class='n'>{human_bytes(training_memory(model, batch, 2, size, again).total)}</td>"
            for size in (4, 2)
            for again in (False, True)
        )
        + "</tr>"
        for batch in (1, 8, 32, 128, 512)
    )
    return (
        "<p>For one image, counted from the configuration. What is kept for training are numbers "
        "between the forward and the backward pass.</p>"
        f"<div class='scroll'><table>{head}{rows}{total}</table></div>"
        "<p style='margin-top:1.4rem'>Estimated memory of a training step with Adam, by "
        "images on the device.</p><div class='scroll'><table><tr><th class='n'>images</th>"
        "<th class='n'>float32</th><th class='n'>and rematerialised</th>"
        "<th class='n'>mixed precision</th><th class='n'>and rematerialised</th></tr>"
        f"{memory}</table></div>"
    )


def _bar(share: float) -> str:
    return f"<i style='width:{100 * share:.1f}%'></i>" if share else ""


def _learned(model: keras.Model) -> Iterator[str]:
    yield _figure(
        "Principal components of the filters that read the image.",
        lambda: plots.plot_patch_filters(patch_filters(model)),
    )
    yield _figure(
        "Cosine similarity of each position embedding (one tile) with all position embeddings.",
        lambda: plots.plot_position_similarity(position_similarity(model)),
    )


def _looks(model: keras.Model, images: Any, few: np.ndarray) -> Iterator[str]:
    seen = displayed(model, few)
    yield _figure(
        "Attention rollout: how much each patch contributes to the pooled output.",
        lambda: plots.plot_attention(seen, attention_rollout(model, few)),
    )
    yield _figure(
        "Attention in the last block, mean over heads.",
        lambda: plots.plot_maps(seen, attention_maps(model, few).mean(axis=1), "attention"),
    )
    yield _figure(
        "Relevance for the likeliest class, by the gradient of its logit; each map by itself.",
        lambda: plots.plot_maps(seen, _relative(class_relevance(model, few)), "relevance"),
    )
    yield _figure(
        "Patches in the colours of the first three principal components of all patches.",
        lambda: plots.plot_components(
            seen, project_patches(model, few, *principal_axes(model, images))
        ),
    )
    yield _figure(
        "Length of the patch tokens after the last block; single bright ones are outliers.",
        lambda: plots.plot_maps(seen, token_norms(model, few), "length"),
    )
    yield _figure(
        "Mean attention distance of every head, over all images.",
        lambda: plots.plot_attention_distance(mean_attention_distance(model, images)),
    )


def _relative(maps: np.ndarray) -> np.ndarray:
    """Divides each map by its maximum, because the scale differs between images."""
    return maps / np.maximum(maps.max(axis=(1, 2), keepdims=True), 1e-12)


def _figure(caption: str, draw: Callable[[], Any]) -> str:
    """A picture embedded in the page, or the reason why this model has none."""
    try:
        figure = draw()
    except (ValueError, RuntimeError) as error:
        reason = str(error).split(". ")[0].rstrip(".")
        return f"<p class='soft'>{html.escape(caption)} Left out: {html.escape(reason)}.</p>"
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130)
    source = base64.b64encode(data.getvalue()).decode("ascii")
    text = html.escape(caption)
    return (
        f"<figure><figcaption>{text}</figcaption>"
        f'<img alt="{text}" src="data:image/png;base64,{source}"></figure>'
    )


def _predictions(model: keras.Model, few: np.ndarray, class_names: Sequence[str] | None) -> str:
    config = getattr(model, "config", None)
    shape = model.outputs[0].shape
    if len(model.outputs) != 1 or len(shape) != 2 or (config and config.classes is None):
        return ""
    outputs = ops.convert_to_numpy(model(few, training=False))
    shares = class_probabilities(model, outputs)
    rows = "".join(
        f"<tr><td class='n'>{index + 1}</td><td>{html.escape(_top(share, class_names))}</td></tr>"
        for index, share in enumerate(shares)
    )
    return (
        "<div class='scroll'><table><tr><th class='n'>image</th><th>likeliest classes</th></tr>"
        f"{rows}</table></div>"
    )


def _top(shares: np.ndarray, class_names: Sequence[str] | None) -> str:
    best = np.argsort(-shares)[:3]
    return ", ".join(
        f"{class_names[i] if class_names else f'class {i}'} {shares[i]:.1%}" for i in best
    )


def human(number: float) -> str:
    """Formats a count with three digits: 86567656 gives `"86.6 M"`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def human_bytes(number: float) -> str:
    """Formats a size in bytes with three digits: 1610612736 gives `"1.5 GiB"`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**power:
            return f"{number / 2**power:.3g} {unit}"
    return f"{number} B"
