"""Settings of a run that are not hyperparameters: data, model, folder, devices.

Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice
from keras_vit.config import TASKS
from keras_vit.fields import documented

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

    _descriptions = f"""
    data: {DATA_FORMS}.
    task: What the columns of a CSV file are: single_label, multi_label or regression; auto decides
        by the values.
    model: Model to train: {MODEL_FORMS}. By default a small one, see --recipe.
    weights: Weights for a VARIANT: tag, {CHECKPOINT_FORMS}.
    recipe: Name such as finetune_pets, see docs/recipes.md; auto chooses the hyperparameters by the
        number of images.
    minutes: Time for a trained model with --recipe auto: without --steps, --epochs and
        --image-size, fewer steps or smaller images are taken where the first steps show that it is
        not enough.
    validation: Share of the images to hold out (0 for none), or images as --data; by default val/
        in --data, if any, or with --recipe auto a share.
    test: Images as --data: choose the learning rate on held-out images, train on all, test once.
        With several labels, regression or --held-out 0, only tested once, at the end.
    output: Folder of the run.
    seed: Random seed.
    data_dir: {DATA_DIR}.
    download: Whether TFDS may download a missing data set.
    unreadable: Treatment of files that cannot be read: error or skip.
    precision: Dtype policy of the layers: float32, mixed_bfloat16 or mixed_float16.
    strategy: Devices: mirrored takes all GPUs of the machine, as auto does if there are several; or
        none.
    tensorboard: Whether to write logs for TensorBoard; by default if it is installed.
    report: Whether to write report.html and predictions.csv at the end.
    """
    data: str | None = None
    task: str = AUTO
    model: str | None = None
    weights: str | None = None
    recipe: str = AUTO
    minutes: float | None = 30.0
    validation: str | None = None
    test: str | None = None
    output: str = "runs/run"
    seed: int = 0
    data_dir: str | None = None
    download: bool = False
    unreadable: str = "error"
    precision: str = "float32"
    strategy: str = "auto"
    tensorboard: bool | None = None
    report: bool = True

    def __post_init__(self) -> None:
        check_choice("task", self.task, (AUTO, *TASKS))
        check_choice("unreadable", self.unreadable, UNREADABLE)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("strategy", self.strategy, STRATEGIES)
