"""Targets of `scripts/fuzz`: files of data sets, vocabularies and stored features."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorflow as tf

import keras_vit
from scripts.testing.fuzz_targets import (
    RefusedError,
    Target,
    change_tree,
    json_bytes,
    odd,
    refusals_naming,
    tiny_vit,
)
from tests.data.containers import PICTURES, samples, write_parquet, write_tar
from tests.texts.test_tokenizer import write_kind

LIMIT = 1 << 20  # bytes that a row group may unpack to


def unchanged(rng, seeds, data):
    """Some files as they are, so that some are read."""
    return seeds[rng.integers(len(seeds))] if rng.random() < 0.1 else data


def black(count):
    """Images of two classes."""
    pixels = np.zeros((count, 8, 8, 3), "uint8")
    return keras_vit.data.read_arrays(pixels, np.arange(count) % 2, ("a", "b"))


class Parquets(Target):
    """Parquet files: bytes, metadata, and pages that unpack to more than their file."""

    def __init__(self, folder):
        self.path, seed = folder / "a.parquet", folder / "seed.parquet"
        write_parquet(seed)
        self.table = pyarrow.parquet.read_table(seed)
        self.facts = json.loads(self.table.schema.metadata[b"huggingface"])
        images = [PICTURES[0], bytes(300_000)] * 6
        large = pyarrow.table({"image": images, "label": ["a", "b"] * 6})
        self.seeds = [seed.read_bytes()]
        for table in (self.table, large):
            for options in (
                {"compression": "zstd", "use_dictionary": False},
                {"compression": "gzip", "data_page_version": "2.0"},
                {"compression": "none", "use_dictionary": False, "row_group_size": 4},
                {"compression": "brotli", "use_dictionary": False, "data_page_size": 100},
            ):
                pyarrow.parquet.write_table(table, seed, **options)
                self.seeds.append(seed.read_bytes())

    def read(self, data, rng):
        self.path.write_bytes(unchanged(rng, self.seeds, data))
        if rng.random() < 0.3:
            facts = json_bytes(self.facts, rng, data)
            table = self.table.replace_schema_metadata({"huggingface": facts})
            pyarrow.parquet.write_table(table, self.path)
        check = ("headers", "pixels", "none")[rng.integers(3)]
        with refusals_naming(self.path.name if check == "none" else str(self.path.parent)):
            images = keras_vit.data.read_parquet(
                self.path, check=check, unreadable="skip", max_group_bytes=LIMIT,
                labelled=rng.random() < 0.7,
            )  # fmt: skip
        assert images.num_images <= 100


class Tars(Target):
    """Tars of WebDataset with headers of all kinds."""

    def __init__(self, folder):
        self.path = folder / "a.tar"
        write_tar(self.path, samples(range(3)))
        self.seeds = [self.path.read_bytes()]
        for kind, fields in (
            (tarfile.GNU_FORMAT, {}),
            (tarfile.PAX_FORMAT, {"comment": "é"}),
            (tarfile.USTAR_FORMAT, {}),
        ):
            with tarfile.open(self.path, "w", format=kind, pax_headers=fields) as tar:
                names = ("0.png", f"{'d' * 90}/{'é' * 40}.png", "0.cls", "1.json", "1.png")
                contents = (*PICTURES[:2], b"1", b'{"cls": 2}', b"x")
                for name, content in zip(names, contents, strict=True):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
            self.seeds.append(self.path.read_bytes())

    def read(self, data, rng):
        self.path.write_bytes(unchanged(rng, self.seeds, data))
        check = ("headers", "pixels", "none")[rng.integers(3)]
        with refusals_naming(str(self.path.parent)):
            images = keras_vit.data.read_webdataset(
                self.path, check=check, unreadable="skip", labelled=rng.random() < 0.5
            )
        assert images.items is not None
        starts = [item.split("\0")[2:4] for item in images.items]
        assert all(int(a) + int(b) <= len(self.path.read_bytes()) for a, b in starts), starts


class Indexes(Target):
    """The index of a folder of records: as many images are read as it says, or an error."""

    def __init__(self, folder):
        self.folder = keras_vit.data.write_records(black(7), folder / "a", per_file=3).folder
        self.path = self.folder / "index.json"
        self.index = json.loads(self.path.read_text())
        self.seeds = [self.path.read_bytes()]

    def change(self, rng):
        """Counts that agree with one another, and mostly not with the files."""
        counts = [int(rng.integers(0, 5)) for _ in self.index["files"]]
        files = [{**row, "records": n} for row, n in zip(self.index["files"], counts, strict=True)]
        totals = {"images": sum(counts), "images_of_classes": [sum(counts), 0]}
        return json.dumps({**self.index, "files": files, **totals}).encode()

    def read(self, data, rng):
        agree = rng.random() < 0.05
        data = self.change(rng) if agree else json_bytes(self.index, rng, data)
        self.path.write_bytes(unchanged(rng, self.seeds, data))
        with refusals_naming(str(self.folder)):
            images = keras_vit.data.read_record_folder(self.folder)
        if not agree:
            return
        try:
            read = sum(1 for _ in images.read((0, images.num_images), None, 0))
        except tf.errors.InvalidArgumentError as error:
            assert ".tfrecord" in str(error), error
            raise RefusedError(str(error)) from error
        assert read == images.num_images == 7


class Vocabularies(Target):
    """Vocabularies of all kinds, and texts of any kind."""

    words = ("a cat", "", "\ud800", "\0\uffff", "</s>", "\u3000ﬁ&amp;amp;", "A" * 3_000, "é ",
             "[SEP]")  # fmt: skip

    def __init__(self, folder):
        self.folder = write_kind(folder, "vocab.txt").parent
        self.files = {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()
        }
        self.seeds = list(self.files.values())

    def text(self, rng):
        if rng.random() < 0.1:
            return odd(rng)
        return "".join(rng.choice(self.words, rng.integers(1, 4)))

    def read(self, data, rng):
        for name, content in self.files.items():
            (self.folder / name).write_bytes(content)
        name = list(self.files)[rng.integers(len(self.files))]
        path, seed = self.folder / name, self.files[name]
        if path.suffix == ".json" and rng.random() < 0.8:
            data = json.dumps(change_tree(json.loads(seed), rng)).encode()
        path.write_bytes(seed if rng.random() < 0.2 else data)
        path = path.with_name("vocab.json") if name == "merges.txt" else path
        pooling = ("eot", "last", "mean")[rng.integers(3)]
        clean = ("transformers", "open_clip")[rng.integers(2)]
        with refusals_naming(str(self.folder)):
            tokenizer = keras_vit.image_text.load_tokenizer(path, 8, pooling, clean)
        with refusals_naming(""):
            ids = tokenizer([self.text(rng) for _ in range(rng.integers(1, 4))])
        assert ids.shape[1] == 8, ids


class Stores(Target):
    """Folders of stored features."""

    def __init__(self, folder):
        self.folder = folder / "store"
        model = tiny_vit(image_size=8)
        keras_vit.evaluate.store_features(model, black(5), self.folder, verbose=False)
        self.files = {path: path.read_bytes() for path in sorted(self.folder.iterdir())}
        self.seeds = list(self.files.values())

    def read(self, data, rng):
        for path, content in self.files.items():
            path.write_bytes(content)
        path = list(self.files)[rng.integers(len(self.files))]
        if path.suffix == ".json" and rng.random() < 0.9:
            data = json_bytes(json.loads(self.files[path]), rng, data)
        path.write_bytes(unchanged(rng, [self.files[path]], data))
        with refusals_naming(str(self.folder)):
            found = keras_vit.evaluate.load_features(self.folder)
        assert len(found.values) == len(found.labels) == 5


TARGETS = (Parquets, Tars, Indexes, Vocabularies, Stores)
