"""The table of commands of `keras-vit`: names, functions and flags.

A new command is a function that prints its result, and a row of `COMMANDS`, here or in the folder
of a task. Each flag is a parameter of the function; `train` has those of `settings.py` too. Like
`arguments.py`, this module imports nothing of Keras: a function is imported when its command runs.
"""

from __future__ import annotations

import importlib
import itertools

from keras_vit.cli.arguments import (
    IMAGE_SIZE,
    JSON,
    OUTPUTS,
    TRIALS,
    UNREADABLE_FILES,
    Command,
    argument,
    parse_share,
    parse_sizes,
    setting_argument,
    size_argument,
)
from keras_vit.cli.run_settings import (
    CHECKPOINT_FORMS,
    DATA_DIR,
    DATA_FORMS,
    MODEL_FORMS,
    RUN_FORMS,
    UNREADABLE,
)
from keras_vit.cli.settings import SETTINGS, split_settings
from keras_vit.config import TASKS
from keras_vit.export.formats import FORMATS, GOALS, PRECISIONS, RUNTIMES, SERVERS, Format

MAX_IMAGES = 100  # that exports are checked and calibrated with
LAYOUTS = ("official", "big_vision", "timm", "transformers")  # as in `weights/save.py`


def _precisions(format: Format) -> str:
    """The precisions of a format for the help: `onnx: float16, int8`."""
    names = [name for name in format.tolerances if name != "float32"]
    needing = {name: f"{name} (with --images)" for name in format.calibrated}
    return f"{format.name}: {', '.join(needing.get(name, name) for name in names)}"


_LABELS = argument(
    "--labels", help="text file with one class per line; by default those of the run"
)
_BATCH = argument("--batch-size", type=int, default=32, help="images per step")
_STORED = (
    argument("--data-dir", help=DATA_DIR),
    argument("--download", action="store_true", help="let TFDS download a missing data set"),
)
_LABELLED = (_BATCH, *_STORED)
_MODEL = (argument("model", help=MODEL_FORMS), IMAGE_SIZE)
_TASK = argument(
    "--task",
    choices=TASKS,
    help="what the model predicts, which decides how its outputs are read; by default that of the "
    "run, or single_label",
)
_PREFIX = argument(
    "--prefix", help='what stands before the names of the model, such as "teacher.backbone."'
)
_IMAGES = (
    argument(
        "--images",
        nargs="+",
        default=(),
        help="image files and folders, to check the export with and to calibrate int8; at most "
        f"{MAX_IMAGES} are read, spread evenly",
    ),
    UNREADABLE_FILES,
)


COMMANDS: tuple[Command, ...] = (
    Command(
        "check",
        "cli.data_check:check_data",
        "Prints what a folder or table of images holds, and what would go wrong in training.",
        (
            argument(
                "data",
                help="folder with one folder per class, or with train/ and test/; a CSV file; "
                "tars, Parquet files or records",
            ),
            argument("--validation", help="share of the images to hold out, or other images"),
            argument("--test", help="other images"),
            argument("--data-dir", help="folder of the images that a CSV file names"),
            argument("--task", choices=TASKS, help="what the columns of a CSV file are"),
            argument("--seed", type=int, default=0, help="random seed of the split"),
            argument("--headers-only", action="store_true", help="do not look for near-duplicates"),
            argument("--labels", metavar="MODEL", help="model with which to find wrong labels"),
            argument("--output", default="runs/labels", help="folder for --labels to write to"),
            argument(
                "--unreadable",
                default="skip",
                choices=UNREADABLE,
                help="whether files that cannot be read are an error; they are listed anyway",
            ),
            JSON,
        ),
    ),
    Command(
        "records",
        "cli.records:write_record_folder",
        "Writes images as TFRecord files with an index; the same command continues a killed one.",
        (
            argument("data", help=DATA_FORMS),
            argument(
                "--output",
                required=True,
                help="folder to write to; for archives that one machine cannot read, use "
                "export/beam of the repository",
            ),
            argument("--per-file", type=int, default=1_000, help="images in a file"),
            argument("--threads", type=int, help="files to write at once; by default all cores"),
            *_STORED,
            argument("--task", choices=TASKS, help="what the columns of a CSV file are"),
            argument("--seed", type=int, default=0, help="random seed of the order"),
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "train",
        "cli.training:train_model",
        "Trains a model on images by a recipe; the same command continues an interrupted run.",
        (
            *TRIALS,
            argument("--preview", help="PNG file to write augmented training images to, and stop"),
            argument(
                "--find-learning-rate",
                action="store_true",
                help="try rising learning rates, print their losses, and stop",
            ),
            *OUTPUTS,
            setting_argument(SETTINGS["model"], "model", nargs="?", metavar="MODEL"),
            setting_argument(SETTINGS["data"], "data", metavar="DATA"),
            *(setting_argument(x) for name, x in SETTINGS.items() if name not in ("model", "data")),
        ),
        keeps_buffers=True,
        settings=SETTINGS,
        check=lambda given: split_settings({x: given[x] for x in SETTINGS.keys() & given.keys()}),
    ),
    Command(
        "probe",
        "cli.probe:probe_model",
        "Fits a classifier to features of a frozen model, and prints its accuracy.",
        (
            argument("model", help=MODEL_FORMS),
            size_argument(
                "size of the images that the model takes, such as 224 or 224x320; of several, such "
                "as 224,392, cross-validation chooses; by default that of the model, of a "
                "checkpoint the one that its preprocessing states",
                parse_sizes,
            ),
            argument("data", help=DATA_FORMS),
            argument(
                "--test",
                help="images to measure the accuracy on, or a share to hold out; by default test/ "
                "or val/ of the data, or 0.2",
            ),
            argument(
                "--method",
                default="logistic",
                choices=("logistic", "ridge", "knn", "attentive"),
                help="regression, neighbours, or a learned query that attends to the tokens",
            ),
            argument("--output", default="runs/probe", help="folder to write the model to"),
            argument("--features", help="folder to keep the features in; by default in --output"),
            argument("--folds", type=int, default=5, help="parts of the cross-validation"),
            argument("--seed", type=int, default=0, help="random seed of splits and folds"),
            *_LABELLED,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "evaluate",
        "cli.evaluation:evaluate_model",
        "Prints the accuracy of models and exported files on images, or the metrics of their task.",
        (
            argument(
                "model",
                nargs="+",
                action="append",
                help=f"{RUN_FORMS}; of several a table with accuracy, agreement with the first, "
                "bytes and images a second of each",
            ),
            argument("data", help=DATA_FORMS),
            argument("--output", help="HTML file to write the table to"),
            IMAGE_SIZE,
            _TASK,
            _LABELS,
            *_LABELLED,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "calibrate",
        "cli.trust:calibrate_model",
        "Makes probabilities right, and lets a model abstain, by images it was not trained on.",
        (
            argument("model", help=MODEL_FORMS),
            argument("data", help=DATA_FORMS),
            argument("--output", help="`.keras` file to write; by default that of the model"),
            argument("--coverage", type=float, default=0.9, help="share of sets that are right"),
            argument("--false-alarms", type=float, default=0.05, help="share not to accept"),
            argument("--precision", type=float, help="of several labels; without it, the best F1"),
            *(_TASK, _LABELS, *_LABELLED, UNREADABLE_FILES),
        ),
    ),
    Command(
        "suggest",
        "cli.trust:suggest",
        "Chooses images to label next, and writes them as a table to fill in and as a page.",
        (
            *_MODEL,
            argument("folder", "--data", help="folder of images without labels"),
            argument("--count", type=int, default=100, help="images to choose"),
            argument("--labelled", metavar="DATA", help=f"images with labels: {DATA_FORMS}"),
            argument("--output", default="runs/suggestions", help="folder to write to"),
            *(UNREADABLE_FILES, JSON),
        ),
    ),
    Command(
        "compare",
        "cli.trust:compare",
        "Compares new images with the held-out ones of a run, and exits with 1 if they differ.",
        (
            argument("run", help="folder of a run of `keras-vit train`"),
            argument("folder", "--data", help="folder of new images, without labels"),
            argument("--output", default="runs/compare.html", help="HTML file to write"),
            argument("--most-rejected", type=float, default=0.1, help="share of untypical images"),
            argument("--most-change", type=float, default=0.1, help="change of mean confidence"),
            argument("--unreadable", default="skip", choices=UNREADABLE, help="they are listed"),
            *(_BATCH, JSON),
        ),
    ),
    Command(
        "predict",
        "cli.evaluation:predict_files",
        "Prints the most probable classes of image files, their labels, or values of targets.",
        (
            argument("model", help=RUN_FORMS),
            argument(
                "files",
                "--data",
                nargs="+",
                help="image files, and folders of them; or tars, Parquet files or records; from "
                "100,000 images on, use export/beam of the repository",
            ),
            IMAGE_SIZE,
            _LABELS,
            argument("--top", type=int, default=3, help="classes to print"),
            argument(
                "--threshold",
                type=float,
                default=0.5,
                help="score from which one of several labels is printed",
            ),
            _TASK,
            _BATCH,
            UNREADABLE_FILES,
            JSON,
        ),
        keeps_buffers=True,
    ),
    Command(
        "export",
        "cli.models:export_model",
        "Exports a model as SavedModel, LiteRT, ONNX or OpenVINO file, checked against the model.",
        (
            *_MODEL,
            argument("--to", "--format", required=True, choices=tuple(FORMATS)),
            argument("--output", default="exported", help="the file, or directory, to write"),
            argument(
                "--server",
                choices=tuple(SERVERS),
                help="write --output as a model of the repository of Triton or of OpenVINO Model "
                "Server, with its configuration: "
                + "; ".join(f"{name} of {', '.join(taken)}" for name, taken in SERVERS.items()),
            ),
            argument(
                "--precision",
                help=f"float32 (default); {'; '.join(map(_precisions, FORMATS.values()))}",
            ),
            _TASK,
            _LABELS,
            *_IMAGES,
        ),
    ),
    Command(
        "find-export",
        "cli.models:find_export",
        "Finds the fastest or smallest export of a model that loses no more than a budget.",
        (
            *_MODEL,
            argument(
                "data",
                nargs="?",
                help="labelled images, not those of training; without them, answers for --images "
                "are compared with the model's",
            ),
            argument(
                "--output",
                help="folder to write the chosen file to, and export.json with figures; without it "
                "the file is not kept",
            ),
            argument(
                "--goal",
                default=GOALS[0],
                choices=GOALS,
                help="what is best: the time of a call on this machine (default), or bytes",
            ),
            argument(
                "--budget",
                type=parse_share,
                default=0.01,
                help="largest drop of the accuracy on DATA, such as 0.5%%; without DATA, largest "
                "share of images with another top-1 class than from the model, or without classes "
                "the largest difference; default: 1%%",
            ),
            argument(
                "--runtimes",
                nargs="+",
                default=RUNTIMES,
                choices=RUNTIMES,
                help="runtimes to try; by default all that are installed",
            ),
            argument(
                "--precisions",
                nargs="+",
                choices=PRECISIONS,
                help="precisions to try; by default all, without any images only float32",
            ),
            argument("--batch", type=int, default=1, help="images of a call"),
            _LABELS,
            *_IMAGES,
        ),
    ),
    Command(
        "verify",
        "cli.models:verify_file",
        "Compares the outputs of an exported file with those of its model.",
        (
            argument(
                "path",
                help="SavedModel version or folder of versions, LiteRT or ONNX file, .xml file",
            ),
            *_MODEL,
            argument("--tolerance", type=float, help="largest difference allowed"),
            *_IMAGES,
        ),
    ),
    Command(
        "inspect",
        "cli.models:inspect_model",
        "Writes an HTML report about a model: configuration, cost, weights, attention.",
        (
            *_MODEL,
            argument("images", "--data", nargs="*", help="image files, and folders of them"),
            argument("--output", default="report.html", help="the page to write"),
            _LABELS,
            UNREADABLE_FILES,
        ),
    ),
    Command(
        "report",
        "cli.models:report_run",
        "Writes the result page of a run: curves, accuracy per class, mistakes, calibration.",
        (
            argument("run", help="folder of the run"),
            argument(
                "data", nargs="?", help=f"{DATA_FORMS}; by default the images held out in training"
            ),
            argument("--output", help="the page to write; by default report.html of the run"),
            *_LABELLED,
            argument("--unreadable", choices=UNREADABLE, help="by default as in training"),
        ),
        keeps_buffers=True,
    ),
    Command(
        "push",
        "cli.models:push_model",
        "Publishes the model of a run, or a .keras file, on the Hugging Face hub, with a card.",
        (
            argument("model", help="folder of a run, or a .keras file of this package"),
            argument("address", help="hf://owner/name, or hf://owner/name@branch"),
            argument(
                "--layout",
                choices=("transformers", "timm"),
                help="project that model.safetensors is for; by default one that can represent the "
                "model",
            ),
            argument("--licence", help='licence of the model for the card, such as "apache-2.0"'),
            argument("--private", action="store_true", help="make a new repository private"),
            argument(
                "--dry-run",
                metavar="FOLDER",
                help="write the files to a new folder, and connect to nothing",
            ),
        ),
    ),
    Command(
        "env",
        "cli.environment:show_environment",
        "Prints versions, processor, devices and extras, for a report of a problem.",
    ),
    Command(
        "weights list",
        "cli.weights:list_published",
        "Prints the published weights of an architecture, or of all, one per line.",
        (argument("variant", nargs="?", help='architecture, such as "vit_b16" or "B/16"'), JSON),
    ),
    Command(
        "weights info",
        "cli.weights:show_file",
        "Prints the architecture and sizes of a checkpoint, from the names and shapes in it.",
        (
            argument("file", help=CHECKPOINT_FORMS),
            argument("--arrays", action="store_true", help="print every array"),
            argument(
                "--download",
                action="store_true",
                help="download a file that is not in the cache; otherwise nothing is connected to",
            ),
            _PREFIX,
            JSON,
        ),
    ),
    Command(
        "weights fetch",
        "cli.weights:fetch_file",
        "Downloads weights unless they are in the cache, checks them and prints their path.",
        (
            argument("name", help=CHECKPOINT_FORMS),
            argument("--rehash", action="store_true", help="hash a file in the cache again"),
        ),
    ),
    Command(
        "weights convert",
        "cli.weights:convert_file",
        "Writes a checkpoint, or the model of a run, with the names of another project.",
        (
            argument("source", metavar="IN", help=CHECKPOINT_FORMS),
            argument("target", metavar="OUT", help="file to write, .npz or .safetensors"),
            argument("--layout", required=True, choices=LAYOUTS, help="project of the array names"),
            argument("--variant", help="architecture of IN, if its shapes do not decide it"),
            size_argument("of OUT; by default as for IN's positions"),
            argument("--num-heads", type=int, help="attention heads of IN, if unknown"),
            _PREFIX,
        ),
    ),
)
# Descriptions of the first words of commands.
GROUPS = {
    "weights": "list, inspect, fetch and convert checkpoints",
    "segment": "train, evaluate and apply models of the classes of pixels",
}
# Modules with `COMMANDS` of tasks beyond classification.
_TASKS = (
    "segmentation.command_table",
    "detection.command_table",
    "image_text.command_table",
    "depth.command_table",
    "self_supervised.command_table",
)


def all_commands() -> tuple[Command, ...]:
    """Lists the commands, those of tasks last."""
    tasks = (importlib.import_module(f"keras_vit.{module}").COMMANDS for module in _TASKS)
    return (*COMMANDS, *itertools.chain.from_iterable(tasks))
