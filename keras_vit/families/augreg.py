"""The more than 50,000 checkpoints of "How to train your ViT?": their names and their index."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Collection
from typing import Any

from keras_vit.reading import open_text

FOLDER = "gs://vit_models/augreg"
INDEX = f"{FOLDER}/index.csv"

# Stems of the files, by variant; https://github.com/google-research/vision_transformer
MODELS = {
    "vit_ti16": "Ti_16",
    "vit_s16": "S_16",
    "vit_s32": "S_32",
    "vit_b8": "B_8",
    "vit_b16": "B_16",
    "vit_b32": "B_32",
    "vit_l16": "L_16",
    "r_vit_ti16": "R_Ti_16",
    "r26_vit_s32": "R26_S_32",
    "r26_vit_b32": "R26_B_32",
    "r50_vit_l32": "R50_L_32",
}
# Classes of the data, by its name.
DATASETS = {"i1k": 1000, "i21k": 21843, "i21k_30": 21843}
AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
# KITTI's task there is the distance to the nearest vehicle, in four steps.
ADAPTED_TO = {
    "imagenet2012": 1000, "cifar100": 100, "oxford_iiit_pet": 37, "kitti": 4, "resisc45": 45,
}  # fmt: skip

_NUMBER = r"[0-9.e-]+"
_NAME = re.compile(
    rf"(?P<model>[A-Za-z0-9_]+)-(?P<dataset>i1k|i21k|i21k_30)-(?P<epochs>\d+)ep"
    rf"-lr_(?P<learning_rate>{_NUMBER})-aug_(?P<augmentation>[a-z]+\d?)-wd_(?P<weight_decay>{_NUMBER})"
    rf"-do_(?P<dropout>{_NUMBER})-sd_(?P<stochastic_depth>{_NUMBER})"
    rf"(?:--(?P<adapted_to>[a-z0-9_]+)-steps_(?P<steps>\d+k?)-lr_(?P<adapted_learning_rate>{_NUMBER})"
    rf"-res_(?P<image_size>\d+))?(?:\.npz)?"
)


@dataclasses.dataclass(frozen=True)
class AugRegFile:
    """One file of `gs://vit_models/augreg`, by how it was trained.

    Numbers are the words of the file's name (`"0.001"`, `"20k"`), so that it is written again as
    it was read.

    Args:
        model: Stem of the model: `"B_16"`, `"R26_S_32"`.
        dataset: `"i1k"`, `"i21k"` (300 epochs) or `"i21k_30"`.
        epochs: Epochs of pre-training.
        learning_rate: Of pre-training.
        augmentation: `"none"`, `"light0"`, ... `"strong2"`.
        weight_decay: Of pre-training, as in AdamW.
        dropout: Rate.
        stochastic_depth: Rate of the last block.
        adapted_to: What it was fine-tuned on, or `None`.
        steps: Steps of fine-tuning. `"0k"` means 500.
        adapted_learning_rate: Of fine-tuning.
        image_size: Pixels of fine-tuning; pre-training has 224.
    """

    model: str
    dataset: str
    epochs: int
    learning_rate: str
    augmentation: str
    weight_decay: str
    dropout: str
    stochastic_depth: str
    adapted_to: str | None = None
    steps: str | None = None
    adapted_learning_rate: str | None = None
    image_size: int = 224

    @property
    def name(self) -> str:
        """The file's name, with its `.npz`."""
        pretrained = (
            f"{self.model}-{self.dataset}-{self.epochs}ep-lr_{self.learning_rate}"
            f"-aug_{self.augmentation}-wd_{self.weight_decay}-do_{self.dropout}"
            f"-sd_{self.stochastic_depth}"
        )
        if self.adapted_to is None:
            return f"{pretrained}.npz"
        return (
            f"{pretrained}--{self.adapted_to}-steps_{self.steps}-lr_{self.adapted_learning_rate}"
            f"-res_{self.image_size}.npz"
        )

    @property
    def address(self) -> str:
        """Where it is published."""
        return f"{FOLDER}/{self.name}"

    @property
    def variant(self) -> str:
        """The name of its architecture."""
        return next(variant for variant, stem in MODELS.items() if stem == self.model)

    @property
    def classes(self) -> int:
        """Outputs of its head."""
        return ADAPTED_TO[self.adapted_to] if self.adapted_to else DATASETS[self.dataset]


def augreg_file_name(
    model: str,
    dataset: str = "i21k",
    epochs: int = 300,
    learning_rate: float = 0.001,
    augmentation: str = "none",
    weight_decay: float = 0.1,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    adapted_to: str | None = None,
    steps: str = "20k",
    adapted_learning_rate: float = 0.03,
    image_size: int = 384,
) -> str:
    """The name of an AugReg file, from how it was trained.

    Args:
        model: A variant (`"vit_b16"`) or the stem of its files (`"B_16"`).
        dataset: `"i1k"`, `"i21k"` or `"i21k_30"`.
        epochs: Epochs of pre-training.
        learning_rate: Of pre-training.
        augmentation: `"none"`, `"light0"`, `"light1"`, `"medium1"`, `"medium2"`, `"strong1"` or
            `"strong2"`.
        weight_decay: 0.03 or 0.1.
        dropout: 0.0 or 0.1.
        stochastic_depth: As `dropout`.
        adapted_to: `"imagenet2012"`, `"cifar100"`, `"oxford_iiit_pet"`, `"kitti"`, `"resisc45"`,
            or `None` for the pre-trained file.
        steps: Steps of fine-tuning, as `"20k"`.
        adapted_learning_rate: Of fine-tuning.
        image_size: Pixels of fine-tuning, 224 or 384.

    Returns:
        The name, with `.npz`.

    Raises:
        ValueError: If the project has no such setting. Whether the file itself was published, its
            index knows.

    Example:

    >>> augreg_file_name("vit_b16", augmentation="medium1")
    'B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz'
    """
    model = MODELS.get(model, model)
    _check("model", model, MODELS.values())
    _check("dataset", dataset, list(DATASETS))
    _check("augmentation", augmentation, AUGMENTATIONS)
    _check("weight_decay", weight_decay, (0.03, 0.1))
    _check("dropout", dropout, (0.0, 0.1))
    _check("stochastic_depth", stochastic_depth, (0.0, 0.1))
    if adapted_to is not None:
        _check("adapted_to", adapted_to, list(ADAPTED_TO))
        _check("image_size", image_size, (224, 384))
    rates = f"{weight_decay}", f"{dropout:.1f}", f"{stochastic_depth:.1f}"
    pretrained = (model, dataset, epochs, f"{learning_rate}", augmentation, *rates)
    return AugRegFile(*pretrained, adapted_to, steps, f"{adapted_learning_rate}", image_size).name


def is_augreg_name(name: str) -> bool:
    """Tells whether a file has the name of an AugReg file."""
    return _NAME.fullmatch(name.rpartition("/")[2]) is not None


def parse_augreg_name(name: str) -> AugRegFile:
    """Reads the name of an AugReg file, with or without folder and `.npz`.

    Raises:
        ValueError: If it is not the name of such a file.
    """
    found = _NAME.fullmatch(name.rpartition("/")[2])
    if not found or found["model"] not in MODELS.values():
        raise ValueError(
            f"{name!r} is not the name of an AugReg file, which looks like "
            "'B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz'."
        )
    fields: dict[str, Any] = found.groupdict()
    fields["epochs"] = int(fields["epochs"])
    fields["image_size"] = int(fields["image_size"] or 224)
    return AugRegFile(**fields)


def read_augreg_index(path: str | os.PathLike[str]) -> list[dict[str, str | float]]:
    """Reads the `index.csv` of the AugReg files: one row a fine-tuned file.

    Args:
        path: The file, as `keras_vit.hub.fetch_weights(INDEX)` fetches it.

    Returns:
        Its rows, by the names of its columns; columns of numbers as floats.

    Raises:
        ValueError: If the file lacks a column that the choice of a checkpoint needs.
    """
    with open_text(path) as file:
        reader = csv.DictReader(file)
        missing = {"ds", "filename", "adapt_filename", "final_val"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{os.fspath(path)} is not the index of the AugReg files: it lacks the columns "
                f"{', '.join(sorted(missing))}. It is published at {INDEX}."
            )
        return [{key: _number(value) for key, value in row.items()} for row in reader]


def find_best_augreg(rows: list[dict[str, str | float]], model: str) -> AugRegFile:
    """The pre-trained file that the official code takes for a model: the best in its own task.

    Of the files pre-trained on ImageNet-21k, the one with the highest accuracy on held-out
    images of ImageNet-21k.

    Args:
        rows: What `read_augreg_index` returns.
        model: A variant (`"vit_b16"`) or the stem of its files (`"B_16"`).

    Returns:
        The file.

    Raises:
        ValueError: If the index has no file of that model.
    """
    stem = MODELS.get(model, model)
    fitting = [
        row for row in rows if row["ds"] == "i21k" and str(row["filename"]).split("-")[0] == stem
    ]
    if not fitting:
        stems = sorted({str(row["filename"]).split("-")[0] for row in rows})
        raise ValueError(
            f"The index has no file of {model!r} pre-trained on ImageNet-21k. "
            f"It has: {', '.join(stems)}."
        )
    best = max(fitting, key=lambda row: float(row["final_val"]))
    return parse_augreg_name(str(best["filename"]))


def _check(field: str, value: object, choices: Collection[Any]) -> None:
    if value not in choices:
        raise ValueError(
            f"AugReg has no {field}={value!r}. There are: {', '.join(map(str, choices))}."
        )


def _number(text: str) -> str | float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text
