"""The command line: every command, by what it prints and writes."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import resource
import shutil
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from keras_vit.cli.commands import all_commands
from keras_vit.cli.main import main
from keras_vit.cli.parser import build_parser
from keras_vit.installation import DISTRIBUTION, pip_install
from keras_vit.models.vit import build_vit
from tests.cli.conftest import ConnectedError
from tests.fixtures import tiny_config
from tests.official import GOLDEN

OPENERS = {
    "open_model",
    "open_predictor",
    "load_run",
    "load_towers",
    "find_checkpoint",
    "load_keras_file",
}
WITHOUT_SIZE = {
    "calibrate": "what it fits is for the size of the model",
    "compare": "the run has the size that it was trained with",
    "report": "the run has the size that it was trained with",
    "push": "what is published is the run, or the model as it is",
    "weights info": "describes a file or a run as it is",
    "weights fetch": "downloads a file, and builds no model",
}
TOKEN = GOLDEN / "vit_token.checkpoint.npz"


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.name)
def test_a_flag_is_a_parameter_of_the_function_it_calls(command):
    words = command.name.split()
    parser = build_parser([command])
    line = words + ["x" for each in command.inputs if each.is_required]
    for each in command.arguments:
        if each.is_required and not each.is_input:
            line += [each.names[0], str(each.settings.get("choices", "x")[0])]
    line += {"zero-shot": ["--output", "x.keras"], "search": ["--image", "x"]}.get(command.name, [])
    parsed = vars(parser.parse_args(line))
    assert parsed.pop("command") is command
    assert parsed.pop("debug") is False
    signature = inspect.signature(command.function)
    kinds = {name: each.kind for name, each in signature.parameters.items() if name != "flags"}
    named = {name for name, kind in kinds.items() if kind != inspect.Parameter.VAR_KEYWORD}
    found = set(parsed) - set(command.settings)  # `flags`: tests/cli/test_settings.py
    assert found == named if len(named) == len(kinds) else found > named  # the rest is handed on
    for name, value in parsed.items():
        if name not in named:
            continue
        default = signature.parameters[name].default
        assert default in (inspect.Parameter.empty, value) or "x" in value


def test_every_command_that_takes_a_model_takes_a_size_of_images():
    found = {
        command.name: "image_size" in inspect.signature(command.function).parameters
        or any("--image-size" in each.names for each in command.arguments)
        for command in all_commands()
        if opens_model(command.function)
    }
    assert {name for name, has_size in found.items() if not has_size} == set(WITHOUT_SIZE)
    assert sum(found.values()) == 19 and found["zero-shot"] and found["segment predict"]


def opens_model(function):
    """Whether a function, or one of its module that it calls, opens a model."""
    waiting, seen = [function], set()
    while waiting:
        each = inspect.unwrap(waiting.pop())
        seen.add(each)
        names = set(re.findall(r"\w+", inspect.getsource(each)))
        if names & OPENERS:
            return True
        called = (vars(inspect.getmodule(each)).get(name) for name in names)
        waiting += [
            x
            for x in called
            if inspect.isfunction(x) and x.__module__ == each.__module__ and x not in seen
        ]
    return False


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("224x320", (224, 320))])
def test_a_size_is_one_number_or_height_and_width(text, size, capsys):
    assert build_parser().parse_args(["inspect", "x", "--image-size", text]).image_size == size
    for wrong in (f"{text}px", "0", "1x2x3", "-4"):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["inspect", "x", f"--image-size={wrong}"])
        expected = "pixels such as 224, or height and width such as 224x320, are expected. Received"
        assert expected in capsys.readouterr().err


def test_every_command_says_what_it_does(capsys):
    for command in all_commands():
        with pytest.raises(SystemExit) as stop:
            main([*command.name.split(), "--help"])
        assert stop.value.code == 0
        assert command.function.__doc__.partition("\n")[0] == command.summary
        assert command.summary in " ".join(capsys.readouterr().out.split())


# The process of a command, which takes 0.1 s, and 0.3 s where no modules are compiled yet.
HELP = """
import sys
sys.argv[0] = "keras-vit"
from keras_vit.cli.main import main
try:
    sys.exit(main())
finally:
    slow = {"keras", "numpy", "tensorflow"} & set(sys.modules)
    assert not slow, slow
"""


@pytest.mark.parametrize(
    ("words", "code", "answer"),
    [
        (["--help"], 0, "keras-vit [-h]"),
        (["check", "no/such"], 2, "There is no folder no/such."),
        (["check", "such.csv"], 2, "There is no file such.csv."),
        (["predict", "a.png", "--model", "no/such.keras"], 2, "folder 'no' does not exist."),
        (["export", "such.keras", "--to", "onnx"], 2, "There is no file 'such.keras'. Its folder"),
        (["evaluate", "such.tflite", "."], 2, "There is no file 'such.tflite'. Its folder"),
        (["train", "--epoch", "3"], 2, "There is no flag --epoch: did you mean --epochs?"),
        (["segment", "train"], 2, "Missing: IMAGES (--images), MASKS (--masks)."),
        (["segment", "train", "a", "b", "--head", "c"], 2, "`head` must be one of 'linear'"),
        (["train", "a", "--unreadable", "b"], 2, "`unreadable` must be one of"),
        (["zero-shot", "a", "--classes", "b"], 2, "There is nothing to do. Pass --images, or"),
        (["search", "a", "b"], 2, "There is nothing to search for. Pass a text, or --image."),
        (["find-export", "a", "--budget", "low"], 2, "a share such as 0.5% or 0.005 is expected"),
    ],
)
def test_help_and_what_does_not_exist_answer_at_once(words, code, answer):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", HELP, *words], capture_output=True, text=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == code, done.stderr
    assert answer in done.stdout + done.stderr and seconds < 0.5


def test_flags_are_described_without_docstrings():
    command = ["-m", "keras_vit", "train", "--help"]
    plain, stripped = (
        subprocess.run([sys.executable, *flags, *command], capture_output=True, text=True)
        for flags in ((), ("-OO",))
    )
    assert stripped.returncode == 0, stripped.stderr
    assert stripped.stdout == plain.stdout
    assert "Whether half of the images are mirrored" in plain.stdout


DAMAGED = {
    "not an archive": b"no model",
    "cut": b"PK\x03\x04" + b"\0" * 100,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_refused_keras_file_is_one_line(content, tmp_path, capsys):
    path = tmp_path / "model.keras"
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"keras-vit: error: {path} is damaged or no .keras file")
    assert error.count("\n") == 1
    assert main(["inspect", str(path), "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("chained", [False, True])
def test_too_little_memory_is_no_damaged_file(chained, tmp_path, capsys, monkeypatch):
    def no_memory(*_, **__):
        try:
            raise MemoryError("Unable to allocate 4.00 TiB")
        except MemoryError as error:
            if not chained:
                raise
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating") from error

    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(path)
    monkeypatch.setattr(keras.saving, "load_model", no_memory)
    assert main(["inspect", str(path)]) == 2
    error = capsys.readouterr().err
    assert ("OOM when allocating" if chained else "There is too little memory. Unable") in error
    assert "damaged" not in error


def test_code_in_a_keras_file_is_refused(tmp_path, capsys):
    keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x)]).save(
        tmp_path / "code.keras"
    )
    assert main(["inspect", str(tmp_path / "code.keras")]) == 2
    error = capsys.readouterr().err
    assert "is refused by Keras" in error and error.count("\n") == 1


def fails(error):
    def command(*_, **__):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (ImportError(f"Install it: {pip_install('onnx')}"), 2, pip_install("onnx")),
        (FloatingPointError("The loss is nan"), 2, "The loss is nan"),
        (tf.errors.ResourceExhaustedError(None, None, "out of memory\nnode"), 2, "TensorFlow: Res"),
        (KeyboardInterrupt(), 130, "Ctrl-C"),
    ],
)
def test_expected_errors_are_one_line(error, status, printed, monkeypatch, capsys):
    monkeypatch.setattr("keras_vit.cli.weights.list_published", fails(error))
    assert main(["weights", "list"]) == status
    said = capsys.readouterr().err.strip()
    assert printed in said and said.startswith("keras-vit: ") and "\n" not in said


def test_names_in_errors_and_warnings_cannot_pass_for_other_lines(monkeypatch, capsys):
    error = ValueError("a\x1b[2J \udcff\nkeras-vit: warning: b\n  c")
    monkeypatch.setattr("keras_vit.cli.weights.list_published", fails(error))
    assert main(["weights", "list"]) == 2
    said = "keras-vit: error: a\\x1b[2J \\udcff\n  keras-vit: warning: b\n  c\n"
    assert capsys.readouterr().err == said


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("keras_vit.cli.weights.list_published", fails(KeyError("bug")))
    with pytest.raises(KeyError, match="bug"):
        main(["weights", "list"])


def test_a_malformed_variable_is_one_line(monkeypatch, capsys):
    words = ["train", "--data", ".", "--model", "vit_b16", "--recipe", "finetune_pets"]
    done = subprocess.run(
        [sys.executable, "-m", "keras_vit", *words],
        env={**os.environ, "KERAS_BACKEND": "caffe"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "caffe" in done.stderr and done.stderr.count("\n") == 1
    monkeypatch.setenv("TF_CONFIG", "{")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "TF_CONFIG is wrong: it is not JSON" in error and error.count("\n") == 1


ONLINE = ("hf://o/n", "hf://o/n/m.keras", "https://h.org/a.npz", "https://h.org/a.keras")


def test_no_command_connects_unless_it_is_asked_to(tiny, tmp_path, monkeypatch, capsys):
    """In the tests of all commands, `offline` of conftest.py refuses connections."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERAS_VIT_MIRROR")
    build_vit(tiny_config(classes=2)).save("m.keras")
    shutil.copy(TOKEN, "m.npz")
    for words in (
        ["list"],
        ["info", "vit_tiny/in10"],
        ["info", "m.npz"],
        ["info", "m.keras"],
        ["convert", "m.npz", "n.npz", "--layout", "official", "--variant", "vit_tiny"],
    ):
        assert main(["weights", *words]) == 0, words
    capsys.readouterr()
    for file in ONLINE:
        assert main(["weights", "info", file]) == 2
        assert f"{file} is not in the cache: pass --download" in capsys.readouterr().err
        try:  # the client of the hub turns what it meets into an error of its own
            assert main(["weights", "info", file, "--download"]) == 2
        except ConnectedError:
            continue
        assert file.startswith("hf://") and "ConnectedError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "vit_b17"], "There is no variant 'vit_b17'"),
        (
            ["info", "nothing.npz"],
            "There is no model or checkpoint 'nothing.npz'. Pass a run folder, a .keras file",
        ),
        (["info", "r26_vit_b32"], "Similar names: r26_vit_b32/orig_in21k."),
        (["info", "sam_in1k"], "vit_b16/sam_in1k"),
        (
            ["info", "vit_b16"],
            "'vit_b16' is an architecture, not a checkpoint. Similar names: vit_b16/",
        ),
        (["info", "google/vit-base-patch16-224"], "it is hf://google/vit-base-patch16-224."),
        (["info", "."], "is a folder; name the file in it"),
        (["convert", "x.npz", "y.npz", "--layout", "timm"], "written to .safetensors files"),
        (["convert", "x.npz", "no/y.npz", "--layout", "official"], "There is no folder 'no'"),
        (["fetch", "vit_b16/augreg"], "There are no weights 'augreg' of 'vit_b16'"),
    ],
)
def test_errors_are_explained_without_a_traceback(words, message, capsys):
    assert main(["weights", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("keras-vit: error: ") and message in error
    assert "Traceback" not in error


def test_a_wrong_command_names_the_right_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["weights", "lst"])
    assert stop.value.code == 2
    assert "list" in capsys.readouterr().err


def test_the_command_is_installed_under_its_name():
    try:
        entries = importlib.metadata.distribution(DISTRIBUTION).entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from a checkout")
    [entry] = [each for each in entries if each.group == "console_scripts"]
    assert (entry.name, entry.load()) == ("keras-vit", main)
