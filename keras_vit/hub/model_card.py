"""The page of a model on the hub (`README.md`): what it is, how it was trained, how to load it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_vit.errors import printable
from keras_vit.intervals import wilson_interval

_MOST_CLASSES = 20  # rows of the table of classes, and sides of the confusion matrix
_MOST_PAIRS = 10
_HUB_LICENCES = ("apache-2.0", "mit", "bsd-3-clause", "cc-by-4.0", "cc-by-nc-4.0", "apple-ascl")


@dataclasses.dataclass(frozen=True)
class Counts:
    """How the images of a test set were classified.

    Args:
        images: What they are, such as "8 test images".
        class_names: Names of the classes.
        confusion: Number of images by (true class, predicted class), names of the classes; pairs
            that did not occur are left out.
    """

    images: str
    class_names: tuple[str, ...]
    confusion: Mapping[tuple[str, str], int]

    def of_class(self, name: str) -> tuple[int, int]:
        """Images of a class that are recognised, and all of them."""
        rows = [count for (true, _), count in self.confusion.items() if true == name]
        return self.confusion.get((name, name), 0), sum(rows)


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What is known of a model. What is not known is `None` or empty, and left out of the card.

    Args:
        model: Name of the architecture.
        summary: Size and costs, in a sentence.
        task: `"single_label"`, `"multi_label"`, `"regression"` or `"segmentation"`.
        class_names: Names of the outputs.
        data: What it was trained on, in a sentence.
        settings: Hyperparameters by name; dicts are joined.
        counts: Its predictions on images that it was not trained on.
        metrics: Other results by name.
        weights: Name or address of the weights that training began with.
        source: Address of these weights on the hub, `hf://owner/name`, if they are from there.
        weights_licence: Licence of these weights.
        licence: Licence of the model; `None` takes that of the weights for the hub.
    """

    model: str
    summary: str = ""
    task: str = "single_label"
    class_names: tuple[str, ...] = ()
    data: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counts: Counts | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    weights: str | None = None
    source: str | None = None
    weights_licence: str | None = None
    licence: str | None = None


def make_card(facts: CardFacts, repository: str, layout: str | None, reason: str = "") -> str:
    """Writes the page in Markdown, with the fields that the hub reads at its top.

    Args:
        facts: What is known of the model.
        repository: `"owner/name"`.
        layout: `"transformers"` or `"timm"`, the layout of `model.safetensors`; `None` without one.
        reason: Why there is none.
    """
    parts = [
        _front_matter(facts, layout),
        f"# {_text(repository.rpartition('/')[2])}",
        " ".join(filter(None, (f"{_text(facts.model)}.", facts.summary, facts.data))),
        _results(facts),
        _loading(repository, layout, reason, facts),
        _training(facts),
        _licence(facts),
        "Written by keras_vit from files that were there; nothing was measured for this page.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: CardFacts, layout: str | None) -> str:
    """The fields of the hub. JSON is YAML, so names of others cannot add fields."""
    licence = (facts.licence or facts.weights_licence or "").lower()
    fields: dict[str, Any] = {
        "library_name": layout or "keras",
        "tags": ["keras", "vision-transformer", *([layout] if layout else ())],
    }
    if facts.task == "single_label" and facts.class_names:
        fields["pipeline_tag"] = "image-classification"
    if licence in _HUB_LICENCES:
        fields["license"] = licence
    elif licence:
        fields |= {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", licence)}
    if facts.source:
        fields["base_model"] = "/".join(facts.source.removeprefix("hf://").split("/")[:2])
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _results(facts: CardFacts) -> str:
    parts = []
    if facts.counts is not None:
        parts += _accuracy(facts.counts)
    if facts.metrics:
        rows = [(name, f"{value:.4g}") for name, value in facts.metrics.items()]
        parts.append(_table(("at the end of training", "value"), rows))
    return "\n\n".join(["## Results", *parts]) if parts else ""


def _accuracy(counts: Counts) -> list[str]:
    """Accuracy of all images and of each class, and the confusion of the classes."""
    rows = [(name, *counts.of_class(name)) for name in counts.class_names]
    right, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
    parts = [f"Accuracy on {counts.images}: {_with_interval(right, total)}."]
    shown = sorted(rows, key=lambda row: row[1] / row[2] if row[2] else 2)[:_MOST_CLASSES]
    head = ("class", "images", "recognised, with 95 % interval")
    cells = [(name, str(images), _with_interval(part, images)) for name, part, images in shown]
    parts.append(_table(head, cells))
    if len(rows) > _MOST_CLASSES:
        parts[-1] = (
            f"The {_MOST_CLASSES} of {len(rows)} classes that are recognised least:\n\n{parts[-1]}"
        )
        wrong = [(*pair, n) for pair, n in counts.confusion.items() if pair[0] != pair[1]]
        most = sorted(wrong, key=lambda row: -row[2])[:_MOST_PAIRS]
        pairs = [(true, found, str(count)) for true, found, count in most]
        return [*parts, _table(("true class", "predicted", "images"), pairs)]
    matrix = [
        (true, *(str(counts.confusion.get((true, found), 0)) for found in counts.class_names))
        for true in counts.class_names
    ]
    return [*parts, _table(("true class, predicted:", *counts.class_names), matrix)]


def _with_interval(right: int, total: int) -> str:
    if not total:
        return "no images"
    low, high = wilson_interval(right, total)
    return f"{100 * right / total:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


def _loading(repository: str, layout: str | None, reason: str, facts: CardFacts) -> str:
    address = f"hf://{repository}"
    keras_file = (
        "import keras\nimport keras_vit\n\n"
        f'path = keras_vit.hub.fetch_weights("{address}/model.keras")\n'
        "model = keras.saving.load_model(path)"
    )
    parts = ["## Load", _code(keras_file)]
    is_classifier = facts.task == "single_label" and facts.class_names
    if layout is None:
        parts.append(f"There is no file for transformers or timm. {_text(reason)}")
    else:
        parts.append("`model.safetensors` is the same model:")
        parts.append(_code(f'import keras_vit\n\nmodel = keras_vit.from_pretrained("{address}")'))
    if layout == "timm":
        loading = f'model = timm.create_model("hf-hub:{repository}", pretrained=True)'
        parts.append(_code(f"import timm\n\n{loading}"))
    elif layout == "transformers":
        loading = f'model = transformers.AutoModel.from_pretrained("{repository}")'
        if is_classifier:
            loading = (
                f'classify = transformers.pipeline("image-classification", "{repository}")\n'
                'print(classify("photo.jpg"))'
            )
        parts.append(_code(f"import transformers\n\n{loading}"))
    if facts.class_names:
        parts.append("Outputs: " + _names(facts.class_names))
    return "\n\n".join(parts)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 100:,} more" if len(names) > 100 else ""
    return ", ".join(map(_text, names[:100])) + more + "."


def _training(facts: CardFacts) -> str:
    rows = [(name, json.dumps(value)) for name, value in _flat(facts.settings)]
    return "## Training\n\n" + _table(("setting", "value"), rows) if rows else ""


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Pairs of all levels; what is None or empty is left out."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif value not in (None, [], ()):
            yield name, value


def _licence(facts: CardFacts) -> str:
    parts = [f"Licence of this model: {_text(facts.licence)}."] if facts.licence else []
    if facts.weights is not None:
        stated = (
            facts.weights_licence or "not known, look it up before you use or publish the model"
        )
        begun = f"Training began with the weights {_text(facts.weights)}."
        parts.append(f"{begun} Their licence: {_text(stated)}.")
    return "## Licence\n\n" + " ".join(parts) if parts else ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)


def _text(value: object) -> str:
    """Text of others in Markdown: no table, link, HTML or control character in it."""
    return re.sub(r"([\\|<>\[\]`*_#])", r"\\\1", printable(value))
