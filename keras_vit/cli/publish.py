"""`keras-vit push`: a model to the Hugging Face hub."""

from __future__ import annotations

import pathlib

from keras_vit.cli.output import say
from keras_vit.cli.resolve import open_model
from keras_vit.hub.upload import push
from keras_vit.train.run_folder import CONFIG, find_saved_model
from keras_vit.train.runs import load_run


def push_model(
    model: str,
    address: str,
    layout: str | None = None,
    licence: str | None = None,
    private: bool = False,
    dry_run: str | None = None,
) -> None:
    """Publishes the model of a run, or a .keras file, on the Hugging Face hub, with a card."""
    folder = pathlib.Path(model)
    is_run = (folder / CONFIG).is_file() and find_saved_model(folder) is not None
    source = load_run(folder) if is_run else open_model(model)
    done = push(
        source,
        address,
        layout=layout,
        licence=licence,
        private=private or None,
        dry_run=dry_run,
    )
    say(done)
