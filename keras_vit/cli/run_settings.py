"""Settings of a run that are not hyperparameters: data, model, folder, devices.

Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice
from keras_vit.config import TASKS
from keras_vit.fields import described, documented

CHECKPOINT_FORMS = (
    "the path of a checkpoint (.npz, .safetensors) or of a folder with one, an address (https://, "
    "gs://, hf://owner/name), or VARIANT/TAG"
)
MODEL_FORMS = (
    f"a run folder, a .keras file, {CHECKPOINT_FORMS.replace(', or', ',')}, or VARIANT for random "
    "weights"
)
RUN_FORMS = f"{MODEL_FORMS}; or an exported file: SavedModel, LiteRT, ONNX, or OpenVINO's .xml"
CHECKPOINT_ENDINGS = (".npz", ".safetensors", ".h5")
DATA_FORMS = (
    "folder with one folder per class, or with train/ and test/; tars of WebDataset, Parquet files "
    "of Hugging Face, or a folder of one of them or of `keras-vit records`; a CSV file of images "
    "and labels or numbers; or tfds:NAME, tfds:NAME:VERSION@SPLIT"
)
DATA_DIR = "folder of the TFDS data sets, or of the images that a CSV file names"
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
STRATEGIES = ("auto", "none", "mirrored")
UNREADABLE = ("error", "skip")
AUTO = "auto"


@documented
@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Settings of a run that are not hyperparameters."""

    data: str | None = described(None, f"{DATA_FORMS}.")
    task: str = described(
        AUTO,
        "What the columns of a CSV file are: single_label, multi_label or regression; auto decides "
        "by the values.",
    )
    model: str | None = described(
        None, f"Model to train: {MODEL_FORMS}. By default a small one, see --recipe."
    )
    weights: str | None = described(None, f"Weights for a VARIANT: tag, {CHECKPOINT_FORMS}.")
    recipe: str = described(
        AUTO,
        "Name such as finetune_pets, see docs/recipes.md; auto chooses the hyperparameters by the "
        "number of images.",
    )
    minutes: float | None = described(
        30.0,
        "Time for a trained model with --recipe auto: without --steps, --epochs and --image-size, "
        "fewer steps or smaller images are taken where the first steps show that it is not enough.",
    )
    validation: str | None = described(
        None,
        "Share of the images to hold out (0 for none), or images as --data; by default val/ in "
        "--data, if any, or with --recipe auto a share.",
    )
    test: str | None = described(
        None,
        "Images as --data: choose the learning rate on held-out images, train on all, test once. "
        "With several labels, regression or --held-out 0, only tested once, at the end.",
    )
    output: str = described("runs/run", "Folder of the run.")
    seed: int = described(0, "Random seed.")
    data_dir: str | None = described(None, f"{DATA_DIR}.")
    download: bool = described(False, "Whether TFDS may download a missing data set.")
    unreadable: str = described("error", "Treatment of files that cannot be read: error or skip.")
    precision: str = described(
        "float32", "Dtype policy of the layers: float32, mixed_bfloat16 or mixed_float16."
    )
    strategy: str = described(
        "auto",
        "Devices: mirrored takes all GPUs of the machine, as auto does if there are several; or "
        "none.",
    )
    tensorboard: bool | None = described(
        None, "Whether to write logs for TensorBoard; by default if it is installed."
    )
    report: bool = described(True, "Whether to write report.html and predictions.csv at the end.")

    def __post_init__(self) -> None:
        check_choice("task", self.task, (AUTO, *TASKS))
        check_choice("unreadable", self.unreadable, UNREADABLE)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("strategy", self.strategy, STRATEGIES)
