"""The command `keras-vit depth`: like `cli/commands.py`, it imports nothing of Keras."""

from __future__ import annotations

from keras_vit.cli.arguments import IMAGE_SIZE, UNREADABLE_FILES, Command, argument

COMMANDS: tuple[Command, ...] = (
    Command(
        "depth",
        "depth.commands:write_depth",
        "Writes the depth of image files as 16-bit PNG files, and as coloured pictures.",
        (
            argument("model", help="folder or address of a network for depth, or a .keras file"),
            argument("files", "--data", nargs="+", help="image files, and folders of them"),
            IMAGE_SIZE,
            argument("--output", default="depth", help="folder to write to"),
            UNREADABLE_FILES,
        ),
        keeps_buffers=True,
    ),
)
