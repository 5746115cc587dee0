"""Targets of `scripts/fuzz`: settings, palettes, boxes, masks, captions, adapters, layouts."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import pathlib
import traceback
from collections.abc import Sequence

import numpy as np
import safetensors.numpy
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.cli import settings
from keras_vit.config import field_names
from keras_vit.create import build
from keras_vit.models.lora import add_lora, lora_layers
from keras_vit.train.recipes import RECIPES
from keras_vit.weights.inspection import adapt_config
from keras_vit.weights.save import save_weights
from tests.data.containers import write_tar
from tests.hostile_files import encoded
from tests.image_gpt.test_weights import CONFIG, arrays_in_official_names, write_tensorflow
from tests.weights.folders import BIT, FOLDERS, SIZES

PACKAGE = str(pathlib.Path(keras_vit.__file__).parent)
ROOT = pathlib.Path(__file__).resolve().parents[2]
NESTED = "[" * 3000 + "]" * 3000
# Values of JSON that seldom stand in a file.
ODD: tuple = (
    None, True, False, 0, 1, 2, -1, 3.0, 1e-12, 1e308, 10**9, 99999, 32, 48, 10**400, -(10**400),
    2**63, float("nan"), float("inf"), "", "x", "none", "avg", "map", "gelu_new", "timm_wrapper",
    "siglip", "bit", "(a+)+b", "\0", "\ud800", [], {}, [0] * 9, [[]], [[1], [1, 2]], [32, 32],
    [3, 0, 32], [1e-9] * 3, ["x"] * 3, {"a": {}}, [10**400], {"0": 1}, [None],
)  # fmt: skip
# Numbers of settings.
LARGE = (0, 1, 2, 3, 16, 64, 1000, 10**9, 2**40, 2**62, 2**63 - 1, -1)
FLOATS = (0.0, 0.5, 0.999, 1e-300, 1e-12, 1e18, 3.5)


class RefusedError(Exception):
    """A documented exception with a message of this package."""


@contextlib.contextmanager
def refusals_of_ours():
    """Turns ValueErrors and OSErrors of this package's own checks into `RefusedError`."""
    try:
        yield
    except (ValueError, OSError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        is_raised = isinstance(error, OSError) or "raise" in (frame.line or "")  # not by Python
        if not frame.filename.startswith(PACKAGE) or not is_raised:
            raise
        raise RefusedError(str(error)) from error


class Target:
    """Whole files as `seeds`, and `read`, which reads a changed one or raises one of `refusals`."""

    refusals: tuple = (RefusedError,)
    seeds: Sequence[bytes] = ()


def tiny_vit(**fields):
    """A ViT of one block for two classes."""
    sizes = {"patch_size": 8, "width": 8, "depth": 1, "mlp_dim": 8, "num_heads": 2, "classes": 2}
    return keras_vit.build_vit(keras_vit.make_config(**{**sizes, **fields}))


@contextlib.contextmanager
def refusals_naming(name):
    """As `refusals_of_ours`; every message must name the file."""
    try:
        with refusals_of_ours():
            yield
    except RefusedError as error:
        assert name in str(error), error
        raise


def bytes_of(image, kind, **options):
    """An image as a file of some kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def odd(rng):
    return copy.deepcopy(ODD[rng.integers(len(ODD))])  # a change may go into it


def change_tree(tree, rng):
    """A copy of JSON values with one to three of them replaced, removed or renamed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.integers(1, 4)):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = keys[rng.integers(len(keys))]
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
                node = node[key]
                continue
            if rng.random() < 0.1:
                del node[key]
            elif isinstance(node, dict) and rng.random() < 0.1:
                node[str(odd(rng))[:40]] = node.pop(key)
            elif isinstance(node[key], int | float) and rng.random() < 0.3:
                node[key] = node[key] * rng.integers(-1, 4).item()
            else:
                node[key] = odd(rng)
            break
    return tree


def json_bytes(seed, rng, data):
    """Changed JSON, sometimes changed bytes: most of these are no JSON any more."""
    if rng.random() < 0.1:
        return data
    text = json.dumps(change_tree(seed, rng))
    return (text.replace("null", NESTED, 1) if rng.random() < 0.02 else text).encode()


def change_arrays(arrays, rng):
    """Arrays with others of one to three names, shapes, types or values."""
    arrays = dict(arrays)
    for _ in range(rng.integers(1, 4)):
        names = list(arrays)
        name, other = (names[i] for i in rng.integers(len(names), size=2))
        array, kind = arrays[name], rng.integers(8)
        if kind == 0:
            arrays[f"{name}{rng.choice(['_', '.x', '.0'])}"] = arrays.pop(name)
        elif kind == 1 and len(names) > 1:
            del arrays[name]
        elif kind == 2:
            arrays[name] = arrays[other]
        elif kind == 3:
            arrays[name] = array.reshape(rng.choice([1, 2, 3]) * [1] + [-1])
        elif kind == 4:
            arrays[name] = np.resize(array, rng.choice([0, 1, 2, 3, 8, 33], array.ndim))
        elif kind == 5:
            arrays[name] = array.astype(rng.choice(["float16", "float64", "int32", "bool"]))
        elif kind == 6 and array.size:
            arrays[name] = np.where(rng.random(array.shape) < 0.1, np.nan, array)
        else:
            arrays[name] = np.resize(array, (*array.shape, 2))
    return arrays


class Settings(Target):
    """Files of settings and flags of `keras-vit train`, to recipe, model and preprocessing."""

    def __init__(self, folder):
        self.recipes = list(RECIPES.values())
        self.configs = [keras_vit.find_config(name) for name in ("vit_ti16", "resnetv2_50x1_bit")]
        self.path = folder / "run.toml"
        self.seeds = []
        for recipe in self.recipes:
            settings.write_settings(self.path, settings.settings_of(recipe))
            self.seeds.append(self.path.read_bytes())

    def text(self, name, rng):
        """A value, mostly of the type of the setting, as TOML."""
        kind = str(settings.SETTINGS[name].kind)
        if rng.random() < 0.85 and ("int" in kind or "float" in kind):
            values = LARGE if "int" in kind else (*LARGE, *FLOATS)
            value = values[rng.integers(len(values))]
            return json.dumps([value] * 2 if "tuple" in kind and rng.random() < 0.5 else value)
        if rng.random() < 0.05:
            return rng.choice(["9" * 400, "9" * 5000, "0x" + "f" * 5000, NESTED, "a.b." * 2000])
        return json.dumps(odd(rng))

    def read(self, data, rng):
        names = list(settings.SETTINGS)
        if rng.random() < 0.8:
            chosen = rng.choice(names, rng.integers(1, 3), replace=False)
            data = "\n".join(f"{name} = {self.text(name, rng)}" for name in chosen)
            data = data.encode("utf-8", "replace")
        self.path.write_bytes(data)
        with refusals_of_ours():
            flags = {}
            if rng.random() < 0.5:
                name = names[rng.integers(len(names))]
                text = self.text(name, rng).strip('"')
                flags[name] = settings.SETTINGS[name].parse(text)
            found = settings.read_settings(self.path) if rng.random() < 0.7 else {}
            parts = settings.split_settings(found, flags)
            recipe = self.recipes[rng.integers(len(self.recipes))]
            for changes in parts.recipe:
                recipe = recipe.replace(**changes)
            recipe.count_warmup(100)
            recipe.build_optimizer(100)
            for config in self.configs:
                fields = set(field_names(config))
                known = {name: x for name, x in parts.model.items() if name in fields}
                keras_vit.replace_fields(config, **known)
            dataclasses.replace(keras_vit.Preprocessing(), **parts.preprocessing)


class Palettes(Target):
    """Palettes in `.npy` and `.json` files, and what `load_image_gpt` reads."""

    def __init__(self, folder):
        self.folder = folder
        colors = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype("float32")
        self.model = keras_vit.image_gpt.build_image_gpt(CONFIG, colors)
        file = io.BytesIO()
        np.save(file, colors)
        keras_vit.image_gpt.save_image_gpt(self.model, folder / "theirs")
        self.arrays = safetensors.numpy.load_file(folder / "theirs/model.safetensors")
        self.official = write_tensorflow(folder / "model.ckpt-1", arrays_in_official_names())
        self.parts = {p: p.read_bytes() for p in folder.glob("model.ckpt-1.*")}
        self.config = json.loads((folder / "theirs/config.json").read_text())
        self.clusters = json.loads((folder / "theirs/preprocessor_config.json").read_text())
        self.seeds = [file.getvalue(), *self.parts.values(), json.dumps(self.config).encode()]

    def read(self, data, rng):
        kind = rng.integers(5)
        with refusals_of_ours():
            if kind < 2:
                path = self.folder / ("a.npy" if kind else "a.json")
                path.write_bytes(data if kind else json_bytes(self.clusters, rng, data))
                self.model.get_layer("palette").assign(path)
            elif kind == 2:
                for path, content in self.parts.items():
                    path.write_bytes(content)
                list(self.parts)[rng.integers(len(self.parts))].write_bytes(data)
                keras_vit.image_gpt.load_image_gpt(self.model, self.official)
            else:
                folder = self.folder / "theirs"
                arrays = change_arrays(self.arrays, rng) if kind == 3 else self.arrays
                safetensors.numpy.save_file(arrays, folder / "model.safetensors")
                config = json_bytes(self.config, rng, data) if kind == 4 else b"{}"
                (folder / "config.json").write_bytes(config)
                keras_vit.image_gpt.load_image_gpt(self.model, folder / "model.safetensors")


class Boxes(Target):
    """Boxes and labels of three images."""

    def __init__(self, folder):
        self.images = np.zeros((3, 8, 8, 3), "uint8")
        self.boxes = [[[0, 0, 4, 4.5], [1, 2, 3, 4]], [], [[2, 2, 8, 8]]]
        self.labels = [[0, 1], [], [1]]
        self.seeds = [json.dumps({"boxes": self.boxes, "labels": self.labels}).encode()]

    def read(self, data, rng):
        kind = rng.integers(3)
        boxes = change_tree(self.boxes, rng) if kind < 2 else self.boxes
        labels = change_tree(self.labels, rng) if kind > 0 else self.labels
        with refusals_of_ours():
            found = keras_vit.detection.read_boxes(self.images, boxes, labels, ["a", "b"])
        assert np.isfinite(found.boxes).all()
        assert found.labels.max() < 2


class Masks(Target):
    """Masks of an image: every message names the file."""

    def __init__(self, folder):
        self.image, self.mask = folder / "images/a.png", folder / "masks/a.png"
        labels = np.random.default_rng(0).integers(0, 2, (12, 20), "uint8")
        palette = Image.fromarray(labels, "P")
        palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        kinds = [Image.fromarray(labels), Image.fromarray(labels > 0), palette]
        kinds += [palette.convert("RGB"), Image.fromarray(labels.astype("uint16"))]
        self.seeds = [bytes_of(kind, "png") for kind in kinds]
        for path in (self.image, self.mask):
            path.parent.mkdir()
        Image.fromarray(labels).save(self.image)

    def read(self, data, rng):
        self.mask.write_bytes(data)
        colors = [(0, 0, 0), (255, 0, 0)] if rng.random() < 0.4 else None
        check = "pixels" if rng.random() < 0.5 else "headers"
        folders = self.image.parent, self.mask.parent
        with refusals_naming("a.png"):
            masks = keras_vit.segmentation.read_masks(
                *folders, ["a", "b"], colors=colors, check=check
            )
            masks.pixel_counts()


COCO = {
    "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
    "annotations": [{"image_id": 1, "caption": "a cat"}, {"image_id": 2, "caption": "a dog"}],
}


class Captions(Target):
    """Captions in tables, lines of JSON, COCO's JSON, tars and TFRecords, whose images exist."""

    def __init__(self, folder):
        self.folder = folder
        image = encoded("png")
        for name in "ab":
            (folder / f"{name}.png").write_bytes(image)
        pairs = (("0.png", image), ("0.txt", b"a cat"), ("1.png", image),
                 ("1.json", b'{"caption": "a dog"}'))  # fmt: skip
        write_tar(folder / "pairs.tar", pairs)
        self.files = (
            ("captions.csv", b"filepath,title\na.png,a cat\nb.png,a dog\na.png,two\n"),
            ("captions.tsv", b'image\tcaption\r\na.png\t"a\tcat"\r\nb.png\tx\r\n'),
            ("captions.jsonl", b'{"file_name": "a.png", "text": ["a cat", "x"]}\n' * 2),
            ("captions.json", json.dumps(COCO).encode()),
            ("pairs.tar", (folder / "pairs.tar").read_bytes()),
            ("pairs.tfrecord", self._records(folder, image)),
        )
        self.seeds = tuple(content for _, content in self.files)

    @staticmethod
    def _records(folder, image):
        def feature(value):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

        path = folder / "seed.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for text in (b"a cat", b"a dog"):
                features = {"image": feature(image), "caption": feature(text)}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        return path.read_bytes()

    def read(self, data, rng):
        name, seed = self.files[rng.integers(len(self.files))]
        if name == "captions.json" and rng.random() < 0.7:
            data = json_bytes(COCO, rng, data)
        elif rng.random() < 0.2:
            data = seed  # as it is: some must be read
        path = self.folder / name
        path.write_bytes(data)
        texts = keras_vit.image_text
        with refusals_of_ours():
            if name.startswith("captions"):
                pairs = texts.read_captions(path, unreadable="skip")
            else:
                pairs = texts.read_caption_shards([path])
        assert sum(map(len, pairs.texts())) < 1000


class Adapters(Target):
    """Folders of PEFT: read, or refused and the model is as before."""

    def __init__(self, folder):
        self.folder, self.contents = folder, []
        for layout in ("timm", "transformers"):
            model = add_lora(self.build(), 2, targets="all-linear", trainable=("head",))
            keras_vit.train.save_adapter(model, folder, layout)
            config = json.loads((folder / "adapter_config.json").read_text())
            config["alpha_pattern"], config["rank_pattern"] = {"query": 3}, {"query": 2}
            arrays = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
            self.contents.append((config, arrays))
        self.seeds = [safetensors.numpy.save(arrays) for _, arrays in self.contents]
        self.model = self.build()

    def build(self):
        return tiny_vit(image_size=16, gelu="exact")

    def read(self, data, rng):
        config, arrays = self.contents[rng.integers(2)]
        kind = rng.integers(5)
        if kind > 0:
            data = safetensors.numpy.save(change_arrays(arrays, rng) if kind > 2 else arrays)
        text = json_bytes(config, rng, data) if kind in (1, 2) else json.dumps(config).encode()
        (self.folder / "adapter_model.safetensors").write_bytes(data)
        (self.folder / "adapter_config.json").write_bytes(text)
        try:
            with refusals_of_ours():
                keras_vit.train.load_adapter(self.model, self.folder)
        finally:
            changed = bool(lora_layers(self.model))
            if changed:
                self.model = self.build()
        assert changed


class Layouts(Target):
    """Names and shapes of the arrays, and sidecar files, of every layout that is written."""

    def __init__(self, folder):
        self.path = folder / "model.safetensors"
        self.contents = []
        config = {"classes": 10, **SIZES, "depth": 1}
        for name, (layout, fields) in FOLDERS.items():
            if name.endswith(("tanh", "oblong", "grey", "headless")):
                continue
            model = build(BIT if name == "bit" else keras_vit.make_config(**{**config, **fields}))
            own = model.save_pretrained(folder / name, layout)
            sidecars = {p.name: json.loads(p.read_text()) for p in own.glob("*config.json")}
            arrays = safetensors.numpy.load_file(own / "model.safetensors")
            self.contents.append((sidecars, arrays))
        self.configs = keras_vit.make_config(**config), BIT
        official = dataclasses.replace(BIT, standardization="variance")
        goldens = (ROOT / "tests/golden").glob("*.checkpoint.npz")
        bit = save_weights(build(official), folder / "a.npz", "official")
        self.contents += [({}, dict(np.load(path))) for path in (*goldens, bit)]
        self.seeds = [json.dumps(each).encode() for each, _ in self.contents]

    def read(self, data, rng):
        sidecars, arrays = self.contents[rng.integers(len(self.contents))]
        arrays = change_arrays(arrays, rng) if rng.random() < 0.5 or not sidecars else arrays
        if sidecars:
            self.path.write_bytes(safetensors.numpy.save(arrays))
        else:
            with self.path.open("wb") as file:
                np.savez(file, **arrays)
        changed = rng.integers(4)
        for number, name in enumerate(("config.json", "preprocessor_config.json")):
            path = self.path.with_name(name)
            path.unlink(missing_ok=True)
            if name in sidecars:
                is_changed = changed == number or changed == 2
                own = sidecars[name]
                path.write_bytes(json_bytes(own, rng, data) if is_changed else
                                 json.dumps(own).encode())  # fmt: skip
        with refusals_of_ours():
            if rng.random() < 0.1:
                keras_vit.from_pretrained(self.path)
                return
            info = keras_vit.inspect_file(self.path)
            base = self.configs["stages" in info.sizes]
            fields = set(field_names(base)) - {"stem"}
            sizes = {k: v for k, v in {"num_heads": 1, **info.sizes}.items() if k in fields}
            base = keras_vit.replace_fields(base, **sizes)
            adapt_config(base, info)


TARGETS = (Settings, Palettes, Boxes, Masks, Captions, Adapters, Layouts)
