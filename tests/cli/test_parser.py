"""The parser of the command line: inputs by position or by flag, and wrong words."""

from __future__ import annotations

import pytest

from keras_vit.cli.commands import all_commands
from keras_vit.cli.parser import build_parser

COMMANDS = {command.name: command for command in all_commands()}


def parse(line):
    return vars(build_parser().parse_args(line.split()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evaluate m.tflite im", {"model": ["m.tflite"], "data": "im"}),
        ("evaluate --data im m.tflite", {"model": ["m.tflite"], "data": "im"}),
        ("evaluate m.tflite --json --data im", {"model": ["m.tflite"], "data": "im"}),
        ("evaluate m.tflite --json im", {"model": ["m.tflite"], "data": "im"}),
        ("evaluate --json --data im --model m.tflite", {"model": ["m.tflite"], "data": "im"}),
        ("evaluate --model a im", {"model": ["a"], "data": "im"}),
        ("evaluate a b im", {"model": ["a", "b"], "data": "im"}),
        ("evaluate --model a --model b im", {"model": ["a", "b"], "data": "im"}),
        ("evaluate a b --data im", {"model": ["a", "b"], "data": "im"}),
        ("check im", {"data": "im"}),
        ("check --data im", {"data": "im"}),
        ("train im", {"data": "im"}),
        ("train vit_b16 --steps 3 im", {"model": "vit_b16", "data": "im"}),
        ("train im --model vit_b16", {"model": "vit_b16", "data": "im"}),
        ("predict a.png b.png --model m", {"model": "m", "files": ["a.png", "b.png"]}),
        ("predict m a.png b.png", {"model": "m", "files": ["a.png", "b.png"]}),
        ("predict m --data a.png b.png", {"model": "m", "files": ["a.png", "b.png"]}),
        ("predict m -- -a.png", {"model": "m", "files": ["-a.png"]}),
        ("report runs/a", {"run": "runs/a", "data": None}),
        ("report runs/a im", {"run": "runs/a", "data": "im"}),
        ("inspect m", {"model": "m", "images": ()}),
        ("inspect m a.png b", {"model": "m", "images": ["a.png", "b"]}),
        ("search m im a b", {"folder": "im", "texts": ["a", "b"]}),
        ("search m a b --data im", {"folder": "im", "texts": ["a", "b"]}),
        ("segment train im masks", {"images": "im", "masks": "masks"}),
        ("segment train m im masks", {"model": "m", "images": "im", "masks": "masks"}),
        ("segment evaluate im masks --model m", {"model": "m", "images": "im", "masks": "masks"}),
        ("segment predict m im", {"model": "m", "files": ["im"]}),
        ("segment masks m im --crop-layers 1", {"model": "m", "files": ["im"], "crop_layers": 1}),
        ("verify m.onnx --model m.keras", {"path": "m.onnx", "model": "m.keras"}),
    ],
)
def test_inputs_have_a_position_and_a_flag(line, expected):
    parsed = parse(line)
    assert {name: parsed[name] for name in expected} == expected


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_input_can_be_a_flag_and_a_word(command):
    """Whatever is given by flags, the words fill the rest, and none is missing."""
    required = [each for each in command.inputs if each.is_required]
    others = [x for each in command.arguments if each.is_required and not each.is_input
              for x in (each.names[0], each.settings.get("choices", ("x",))[0])]  # fmt: skip
    others += {"zero-shot": ["--output", "x.keras"], "search": ["--image", "x"]}.get(
        command.name, []
    )
    for number in range(len(required) + 1):
        flags = [x for each in required[:number] for x in (f"--{each.names[0]}", each.names[0])]
        words = [each.names[0] for each in required[number:]]
        parsed = vars(build_parser([command]).parse_args(
            [*command.name.split(), *words, *others, *flags]
        ))  # fmt: skip
        for each in required:
            assert parsed[each.names[0]] in (each.names[0], [each.names[0]])


def test_data_is_a_flag_of_every_command_that_takes_images():
    without = {"verify", "export", "push", "env"}  # and those of weights
    for name, command in COMMANDS.items():
        flags = {flag.lstrip("-") for each in command.arguments for flag in each.names}
        if name not in without and not name.startswith("weights"):
            assert "data" in flags, name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train im --epoch 3", "no flag --epoch: did you mean --epochs?"),
        ("train im --epoch=3", "no flag --epoch=3: did you mean --epochs?"),
        ("train im -epochs 3", "no flag -epochs: did you mean --epochs?"),
        ("train im --image_size 32", "no flag --image_size: did you mean --image-size?"),
        ("train im --lr 1", "did you mean --learning-rate or"),
        ("train im --no-flp", "did you mean --no-flip?"),
        ("evaluate m im --jsn", "no flag --jsn: did you mean --json?"),
        ("evaluate m im --zzz", "no flag --zzz."),
        ("evalute m im", "did you mean evaluate?"),
        ("weights lst", "did you mean list?"),
        ("segment trian", "did you mean train?"),
        ("export m --to onx", "did you mean onnx?"),
        ("evaluate", "Missing: MODEL (--model), DATA (--data)."),
        ("evaluate m --modle", "no flag --modle: did you mean --model? Missing: DATA (--data)"),
        ("predict a.png", "Missing: FILES (--files); 'a.png' was taken for MODEL."),
        ("records", "Missing: DATA (--data), --output."),
        ("export", "Missing: MODEL (--model), --to."),
        ("weights convert a", "Missing: OUT (--target), --layout; 'a' was taken for SOURCE."),
        ("probe m im other", "Without a meaning: other."),
    ],
)
def test_all_that_is_wrong_is_said_at_once_with_the_nearest_name(line, message, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(line)
    assert stop.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and error.startswith("keras-vit")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_flag_can_be_abbreviated(command, capsys):
    flags = {name for each in command.arguments for name in each.names if name.startswith("--")}
    for flag in flags - {f"{name}s" for name in flags} - {"--to"}:
        with pytest.raises(SystemExit):
            build_parser([command]).parse_args([*command.name.split(), flag[:-1], "x"])
        assert f"There is no flag {flag[:-1]}: did you mean {flag}" in capsys.readouterr().err


def test_a_file_of_settings_holds_inputs_too(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text('data = "photos"\nmodel = "vit_b16"\n')
    assert "data" not in parse(f"train --config {path}")
    assert parse(f"train --config {path} others")["data"] == "others"
    with pytest.raises(SystemExit):
        parse("train --steps 3")
    assert "Missing: DATA (--data)." in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="There is no file"):
        parse("train --config no.toml")
    path.write_text("dat = 3")
    with pytest.raises(ValueError, match="the nearest is data"):
        parse(f"train --config {path}")
