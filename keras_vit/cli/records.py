"""`keras-vit records`."""

from __future__ import annotations

import pathlib

from keras_vit.cli.output import complain, print_facts
from keras_vit.data.folder import find_parts
from keras_vit.data.record_folder import write_records
from keras_vit.data.sources import open_images
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.train.run_folder import LOCK


def write_record_folder(
    data: str,
    output: str,
    per_file: int = 1_000,
    threads: int | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    download: bool = False,
    unreadable: str = "error",
    task: str | None = None,
) -> None:
    """Writes images as TFRecord files with an index; the same command continues a killed one."""
    parts = find_parts(data) or {"": pathlib.Path(data)}
    names = None
    for part, place in parts.items():  # the training images first
        folder = pathlib.Path(output) / part
        images = open_images(
            data if not part else str(place), data_dir, names, unreadable, "train", download, task
        )
        names = images.class_names
        with FolderLock(folder / LOCK):
            try:
                written = write_records(images, folder, per_file, seed, threads)
            except KeyboardInterrupt:
                complain(f"\nFiles that are complete stay in {folder}. The same command continues.")
                raise
        facts = [("records", f"{folder}: {written.images:,} images")]
        facts.append(("files", f"{written.files:,} ({written.bytes / 1e6:,.1f} MB)"))
        if written.kept:
            facts.append(("kept", f"{written.kept:,} files of an earlier call"))
        print_facts(facts)
