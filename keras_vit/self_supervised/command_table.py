"""The command `keras-vit pretrain`; it imports nothing of Keras."""

from __future__ import annotations

from keras_vit.cli.arguments import OUTPUTS, TRIALS, Command, setting_argument
from keras_vit.self_supervised.settings import COMMAND, SETTINGS, PretrainSettings

COMMANDS: tuple[Command, ...] = (
    Command(
        COMMAND,
        "self_supervised.commands:pretrain_model",
        "Trains a ViT on images without labels, for `train` to start from.",
        (
            *TRIALS,
            *OUTPUTS,
            setting_argument(SETTINGS["images"], "images", "--data", metavar="IMAGES"),
            *(setting_argument(each) for name, each in SETTINGS.items() if name != "images"),
        ),
        keeps_buffers=True,
        settings=SETTINGS,
        check=lambda given: PretrainSettings(**{x: given[x] for x in SETTINGS.keys() & given}),
    ),
)
