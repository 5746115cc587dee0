"""Documents: their code runs, their numbers are those of the package, and what they name exists."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import pathlib
import re
import shlex

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.commands import all_commands
from keras_vit.cli.parser import build_parser
from keras_vit.create import build
from keras_vit.evaluate.compute import training_memory
from keras_vit.evaluate.counting import count_parameters
from keras_vit.hub.catalog import CARDS, list_weights
from keras_vit.variants import VARIANTS, find_config, find_variant
from scripts.testing.readme import run_blocks
from tests.data.pictures import write_folder
from tests.evaluate.test_compute import TABLE_6, TABLE_6_RESNETS, pretraining_exaflops
from tests.fixtures import fill_random, images_for, tiny_config, tiny_vit
from tests.image_text.towers import write_open_clip, write_vocabulary
from tests.models.test_feature_extraction import random_vit
from tests.weights.folders import THEIRS

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("docs", "export", "benchmarks")
PAGES = sorted([*ROOT.glob("*.md"), *(page for f in FOLDERS for page in ROOT.glob(f"{f}/**/*.md"))])


def read(page):
    """The text of docs/PAGE.md."""
    return (DOCS / f"{page}.md").read_text()


def section(page, title):
    """The text of docs/PAGE.md between a title and the next one of this level."""
    return read(page).partition(f"\n## {title}")[2].partition("\n## ")[0]


def blocks_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def execute(block, page, names):
    exec(compile(block, f"docs/{page}.md", "exec"), names)


def resolves(dotted: str) -> bool:
    """Whether `keras_vit.a.b` is an attribute or a module."""
    value = keras_vit
    for part in dotted.split(".")[1:]:
        if hasattr(value, part):
            value = getattr(value, part)
            continue
        try:
            value = importlib.import_module(f"{value.__name__}.{part}")
        except (AttributeError, ImportError):
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_files_exist(page):
    text = page.read_text()
    names = set(re.findall(r"\bkeras_vit(?:\.[A-Za-z_]\w*)+", text.replace("keras_vit.egg", "")))
    assert sorted(name for name in names if not resolves(name)) == []
    for block in blocks_of(text):
        ast.parse(block)
    folders = "tests|examples|benchmarks|scripts|export|keras_vit|docs"
    paths = re.findall(
        rf"(?<![\w/.(:-])((?:{folders})/[\w/.-]+?\.(?:py|md|json|jsonl|yaml))\b", text
    )
    paths += re.findall(r"(?<![\w/.(-])(scripts/[a-z-]+)\b(?![./])", text)
    assert sorted({path for path in paths if not (ROOT / path).exists()}) == []
    functions = set(re.findall(r"`((?:read|train|eval)_\w+)\(", text))
    here = (keras_vit, keras_vit.data, keras_vit.segmentation, keras_vit.detection)
    assert [name for name in functions if not any(hasattr(where, name) for where in here)] == []
    tests = set(re.findall(r"`(test_\w+)`", text))
    assert sorted(name for name in tests if f"def {name}(" not in all_tests()) == []


@functools.cache
def all_tests() -> str:
    return "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_tutorial = target.with_suffix(".py").exists()  # a script, which the site shows as a page
        assert target.exists() or is_tutorial, link
        if anchor and target.exists():
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in slugs, link


def test_functions_stand_in_the_files_that_the_architecture_names():
    text = re.sub(r"\n +", " ", read("architecture"))
    found = re.findall(r"`(keras_vit/[\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", text)
    assert len(found) > 20
    for path, names in found:
        source = (ROOT / path).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(?:def|class) {name}\b|^{name}\b.* =", source, re.MULTILINE), name


def test_commands_of_the_command_line_parse():
    lines = []
    for page in PAGES:
        joined = re.sub(r"\\\n\s*", " ", page.read_text())
        lines += [line for line in joined.splitlines() if line.startswith("keras-vit ")]
    complete = [line for line in lines if not re.search(r"[\[|]", line)]
    assert len(complete) >= 8
    for line in complete:
        build_parser().parse_args(shlex.split(line, comments=True)[1:])  # exits with an error


def test_code_of_the_readme_runs_and_prints_the_output_below_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed = run_blocks((ROOT / "README.md").read_text())
    assert len(printed) == 3
    assert "accuracy" in printed[0]  # of `fit`
    assert printed[1].count("top-1") == 4  # four reports


@pytest.mark.slow
def test_analysis_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    model, images = random_vit(num_registers=1)
    names = {"model": model, "images": images}
    blocks = blocks_of(read("analysis"))
    assert len(blocks) > 8
    for block in blocks:
        execute(block, "analysis", names)
    assert names["heatmap"].shape == (3, 4, 4) and names["gradient"].numpy().any()
    assert names["outputs"]["block_0"].shape == (3, 4, 4, 32)
    pair = names["pair"].numpy()
    assert pair[0, 2] != pair[1, 2]
    expected = pair[0, 2] - pair[1, 2]
    assert names["attributions"].sum() == pytest.approx(expected, abs=2e-3 * abs(pair).max())
    assert names["indices"].shape == (2, 3)
    assert round(names["exaflops"]) == 4257
    days = names["keras_vit"].evaluate.device_days(
        names["exaflops"], "tpu_v3_core", utilization=0.32
    )
    assert round(days) == 2504
    assert names["cost"].images_seen == 384_311_296
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "stages.keras").exists()


@pytest.mark.slow  # the numbers are those of quick tests
def test_the_table_of_analysis_is_what_the_counter_says():
    found = re.findall(r"^\| \S+ \| (\d+) \| ([\d.]+) \| (\d+) \|$", read("analysis"), re.MULTILINE)
    expected = [
        (str(epochs), f"{pretraining_exaflops(variant, epochs):.1f}", str(published))
        for variant, epochs, published in [
            *TABLE_6,
            ("r50_vit_l16", 7, 859),
            *TABLE_6_RESNETS,
        ]
    ]
    assert found == expected


def test_memory_is_within_a_fifth_of_the_compilers_account():
    """What XLA said was measured by benchmarks/training_memory.py; the ratios are made here."""
    rows = re.findall(
        r"^\| (\w+)[^|]*\| (\d+) \| ([\d, ]+) \| ([\d, ]+) \| ([\d., ]+) \|$",
        read("performance")
        .partition("### Estimated and measured memory")[2]
        .partition("\n### ")[0],
        re.MULTILINE,
    )
    assert len(rows) == 5
    for variant, pixels, batches, mebibytes, ratios in rows:
        config = dataclasses.replace(find_config(variant), image_size=int(pixels))
        columns = (column.split(", ") for column in (batches, mebibytes, ratios))
        for batch, measured, ratio in zip(*columns, strict=True):
            estimate = training_memory(config, int(batch)).step / 2**20
            assert estimate / float(measured) == pytest.approx(float(ratio), abs=0.006)
            assert estimate / float(measured) == pytest.approx(1, abs=0.2)


ADDRESS = "hf://google/vit-base-patch16-224"


@pytest.mark.slow
def test_coming_from_runs_on_a_local_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", size=(32, 32))
    small = keras_vit.create_model("vit_ti16", input_shape=(32, 32, 3), depth=2, name="small")
    keras_vit.save_weights(small, "published.safetensors", layout="transformers")
    blocks = blocks_of(read("coming-from"))
    assert len(blocks) == 6
    exports = stub_exports(monkeypatch)
    names: dict = {}
    for block in (block for block in blocks if "# not run" not in block):
        block = block.replace(f'"{ADDRESS}"', '"published.safetensors", num_heads=3')
        block = block.replace("ViTB16(weights=", "create_model('vit_ti16', depth=2, weights=")
        block = block.replace('"hf_orig_in21k_ft_in1k")', '"published.safetensors")')
        block = block.replace("block_2", "block_0").replace("block_5", "block_1")
        block = block.replace("model, 64)", "model, 4)").replace("epochs=5", "epochs=1")
        execute(block, "coming-from", names)
    assert names["tokens"].shape == (None, 5, 192)
    assert names["pooled"].shape == (None, 192)
    assert names["stages"].output["block_1"].shape == (None, 2, 2, 192)
    assert exports == ["serving/pets", "pets.tflite", "pets.onnx"]
    assert keras_vit.inspect_file("model.safetensors").layout == "transformers_vit"


def stub_exports(monkeypatch):
    """Replaces the exports, which the README's code runs, by checks of their arguments."""
    paths: list[str] = []
    for name in ("export_saved_model", "export_litert", "export_onnx"):
        signature = inspect.signature(getattr(keras_vit, name))
        monkeypatch.setattr(
            keras_vit,
            name,
            lambda *args, bind=signature.bind, **options: paths.append(
                bind(*args, **options).arguments["path"]
            ),
        )
    return paths


def test_every_name_of_ours_in_coming_from_exists():
    page = read("coming-from")
    cells = re.findall(r"`(\w+)[.(]", page.split("## From transformers")[1])
    packages = {"data", "train", "models", "analysis"}
    called = {name for name in cells if name in keras_vit.__all__}
    assert {"from_pretrained", "export_onnx", "features_of", "adapt_model"} <= called
    for package, name in re.findall(r"\b(data|train|models|analysis)\.(\w+)", page):
        assert package in packages and hasattr(getattr(keras_vit, package), name), name


def test_every_tag_and_address_of_coming_from_exists():
    page = read("coming-from")
    addresses = {card.address for card in list_weights()}
    for address in re.findall(r'"(hf://[^"]+)"', page.replace("hf://timm/NAME", "")):
        assert address in addresses
    tags = set(re.findall(r'weights="([a-z0-9_]+)"', page)) - {"flexivit_"}
    assert len(tags) >= 4
    assert tags <= {tag for _, tag in CARDS}


@pytest.mark.parametrize("variant", ["vit_b16", "vit_b32", "vit_l16", "vit_l32"])
def test_tags_for_users_of_vit_keras_exist(variant):
    assert (variant, "orig_in21k") in CARDS
    assert (variant, "orig_in21k_ft_in1k_384") in CARDS


class Table:
    """What the page uses of a `pandas.DataFrame`."""

    def __init__(self, rows):
        self.rows = rows

    def to_csv(self, path, index):
        assert not index
        pathlib.Path(path).write_text("file,label\n" + "\n".join(map(",".join, self.rows)))


def test_blocks_about_other_sources_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "photos", count=4)
    paths = sorted(map(str, folder.glob("*/*.jpeg")))
    labels = [int("dogs" in path) for path in paths]
    rng = np.random.default_rng(0)
    names = {
        "keras": keras,
        "keras_vit": keras_vit,
        "model": keras_vit.build_vit(tiny_config(depth=1, classes=2)),
        "paths": paths,
        "labels": labels,
        "table": Table(
            (str(pathlib.Path(path).relative_to(folder)), ("cat", "dog")[label])
            for path, label in zip(paths, labels, strict=True)
        ),
        "scans": rng.integers(0, 4096, (len(paths), 32, 32)).astype("uint16"),
        "bands": rng.uniform(0, 0.6, (2, 32, 32, 6)).astype("float32"),
        "clips": rng.integers(0, 256, (2, 3, 32, 32, 3)).astype("uint8"),
    }
    blocks = blocks_of(section("data", "Images from other sources"))
    found = []
    for block in blocks:
        execute(block, "data", names)
        found.append((names.get("images"), names.get("logits")))
    assert found[1][0].class_names == ("cat", "dog") and found[1][0].num_images == len(paths)
    assert found[2][0].num_images == len(paths) and names["window"].max() == 255
    assert found[3][1].shape == (2, 2) and found[4][1].shape == (2, 2) and len(blocks) == 5
    expected = names["model"].predict(names["clips"][0][..., ::-1], verbose=0).mean(axis=0)
    np.testing.assert_allclose(found[4][1][0], expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_dense_runs_except_for_keras_hub_and_what_needs_files(capsys):
    names: dict = {}
    page = read("dense").replace("(64, 96, 3))", "(64, 96, 3), depth=1)")
    for block in blocks_of(page):
        if not any(text in block for text in ("detector", '"images", "masks"', "serving/")):
            execute(block, "dense", names)
    assert names["larger"].input_shape == (None, 512, 768, 3)
    assert names["class_map"].shape == (64, 96)
    shapes, macs, memory, share, windowed, maps, levels, recipe, measures = (
        capsys.readouterr().out.splitlines()
    )
    assert shapes == "(1, 10) (1, 10)"
    assert int(macs) > 300e9 and int(memory) > 2e9
    assert round(float(share), 2) == 0.71 and int(windowed) < int(memory)
    assert "'block_11': (None, 14, 20, 192)" in maps
    assert all(0 <= float(each) <= 1 for each in measures.split())
    assert recipe == "linear 16 40000 (0.5, 2.0)"
    assert levels == "['P2', 'P3', 'P4', 'P5']"


EXPORTS = {
    "openvino": lambda model: keras_vit.export.export_openvino(model, "pets.xml"),
    "keras": lambda model: keras_vit.export_saved_model(model, "serving/pets"),
    "cv2": lambda model: keras_vit.export_onnx(model, "pets.onnx"),
}


@pytest.mark.parametrize(("number", "package"), list(enumerate(EXPORTS)))
def test_other_runtimes_give_the_models_logits(number, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    model = keras_vit.build_vit(tiny_config(depth=1, gelu="exact"))  # OpenCV has no other
    fill_random(model)
    EXPORTS[package](model)
    block = blocks_of(section("export", "Other runtimes"))[number]
    names = {"keras": keras, "pixels": images_for(model)}
    execute(block, "export", names)
    expected = np.asarray(model(names["pixels"]))[: len(names["logits"])]
    np.testing.assert_allclose(names["logits"], expected, rtol=0, atol=1e-4)


def test_the_file_that_a_browser_is_compared_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_of((ROOT / "export/web/README.md").read_text())
    model = tiny_vit(depth=1)
    exec(compile(block, "export/web/README.md", "exec"), {"model": model})
    golden = json.loads((tmp_path / "golden.json").read_text())
    pixels = np.reshape(golden["pixels"], golden["shape"]).astype("float32")
    np.testing.assert_allclose(model(pixels), golden["logits"], rtol=0, atol=1e-6)
    check = (ROOT / "export/web/check.mjs").read_text()
    assert re.findall(r"const \{ (\w+, \w+, \w+) \} = JSON", check) == ["pixels, shape, logits"]


def test_every_row_of_the_faq_names_tests_that_exist():
    rows = [line for line in read("faq").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| report |")]
    assert 25 <= len(rows) <= 50
    for row in rows:
        named = re.findall(r"`tests/([\w/]+\.py)::(test_\w+)`", row.split(" | ")[-1])
        assert named, row
        for file, test in named:
            assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_class_weight_of_several_outputs():
    """An error in Keras and here; weights of each output are the way."""
    vit = keras_vit.build_vit(tiny_config(depth=1, image_size=16, classes=None))
    first = keras.layers.Dense(2, name="first")(vit.outputs[0])
    second = keras.layers.Dense(3, name="second")(vit.outputs[0])
    images, labels = np.zeros((4, 16, 16, 3), "float32"), np.arange(4) % 2
    y = {"first": labels, "second": labels}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for kind in (keras.Model, keras_vit.Model):
        model = kind(vit.inputs, {"first": first, "second": second})
        model.compile(keras.optimizers.SGD(0.0), {"first": loss, "second": loss})
        with pytest.raises(ValueError, match="only supported for Models with a single output"):
            model.fit(images, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)
        weights = {"first": labels + 1.0, "second": np.ones(4)}
        losses.append(model.fit(images, y, sample_weight=weights, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.slow
def test_few_labels_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks_of(read("few-labels")):
        block = block.replace("depth=2", "depth=1")
        execute(block, "few-labels", names)
    assert float(re.search(r"\[([\d.]+)\]", capsys.readouterr().out).group(1)) > 0.5
    assert names["both"].get_layer("head").units == 3


@pytest.mark.slow
def test_hybrids_and_resnets_run():
    blocks = blocks_of(read("hybrids-and-resnets"))
    assert len(blocks) == 4
    code = "\n".join(blocks).replace("R50ViTB16(", "RViTTi16(")  # the smallest will do
    names: dict = {}
    exec(code, names)
    assert set(names["maps"].output) == {"stage_2", "stage_4"}
    assert isinstance(names["folded"], keras_vit.Model)
    assert names["features"].output_shape == (None, 2048)


@pytest.mark.slow  # the numbers are those of quick tests
def test_variants_of_hybrids_and_resnets_are_as_the_page_says():
    lines = read("hybrids-and-resnets").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    for row in rows:
        names = re.findall(r"`([^`]+)`", row[1])
        assert set(names) <= set(VARIANTS)
        for alias in re.findall(r"`([^`]+)`", row[2]):
            assert find_variant(alias) == names[0]
        counts = {count_parameters(VARIANTS[name]) for name in names}
        written = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]{6,}", row[-2])}
        assert written <= counts
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    ours = {name for name in VARIANTS if "_vit_" in name or name.startswith("bit_")}
    assert listed == ours


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:(currentThread|getName)\(:DeprecationWarning")  # of KerasTuner
def test_ensembles_siamese_models_and_a_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ensemble, siamese, search = blocks_of(section("training", "Ensembles, siamese"))
    names = {}
    execute(ensemble, "training", names)
    images = np.random.default_rng(0).uniform(0, 255, (8, 32, 32, 3)).astype("float32")
    expected = np.mean([member(images) for member in names["members"]], axis=0)
    loaded = keras.saving.load_model("ensemble.keras")
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)
    assert (tmp_path / "ensemble").is_dir()

    execute(siamese, "training", names)
    pairs = {"left": images, "right": images[::-1].copy()}
    model, backbone = names["siamese"], names["backbone"]
    one, other = (np.asarray(backbone(x)) for x in pairs.values())
    cosine = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    np.testing.assert_allclose(np.asarray(model(pairs))[:, 0], cosine, atol=1e-5)
    before = np.array(backbone.weights[0])
    model.fit(pairs, np.zeros(8), verbose=0)
    assert (before != np.array(backbone.weights[0])).any()

    pytest.importorskip("keras_tuner")
    names |= {"images": images, "labels": np.arange(8) % 10}
    execute(search, "training", names)
    assert set(names["tuner"].get_best_hyperparameters()[0].values) == {
        "depth_rate",
        "learning_rate",
    }


def test_losses_metrics_and_weights():
    (block,) = blocks_of(section("training", "Losses, metrics and weights"))
    names: dict = {}
    execute(block, "training", names)
    shares, labels = np.asarray(names["probabilities"])[:, 0], names["labels"]
    results, is_right = names["results"], (shares > 0.5) == labels
    assert results["accuracy"] == pytest.approx(is_right.mean())
    assert results["weighted_accuracy"] == pytest.approx(
        np.average(is_right, weights=1 + 2 * labels)
    )
    assert results["auc"] == pytest.approx(float(keras.metrics.AUC()(labels, shares)))
    assert results["recall"] == pytest.approx((shares[labels] > 0.5).mean())


def test_every_command_and_setting_of_weights_is_on_the_page():
    page = read("weights")
    for command in (command for command in all_commands() if command.name.startswith("weights ")):
        [line] = [
            line for line in page.splitlines() if line.startswith(f"keras-vit {command.name}")
        ]
        for each in command.arguments:
            assert each.names[0].lstrip("-") in line.lower() or each.settings["metavar"] in line
    code = "".join(path.read_text() for path in (ROOT / "keras_vit").rglob("*.py"))
    settings = set(re.findall(r"KERAS_VIT_[A-Z_]+", code))
    assert settings and settings <= set(re.findall(r"KERAS_VIT_[A-Z_]+", page))


def test_tags_and_names_in_the_examples_of_weights_exist():
    page = read("weights")
    tags = set(re.findall(r'weights="([a-z0-9_]+)"', page))
    assert tags and all(("vit_b16", tag) in CARDS for tag in tags)
    for name in re.findall(r"keras_vit\.([A-Za-z_0-9]+)\(", page):
        assert hasattr(keras_vit, name), name
    addresses = set(re.findall(r'weights="((?:gs|hf)://[^"]+)"', page))
    assert addresses <= {card.address for card in CARDS.values()}
    prefixes = set(re.findall(r"`([a-z0-9_]+_)\*`", page))
    assert all(any(tag.startswith(prefix) for _, tag in CARDS) for prefix in prefixes)
    assert all(any(tag.startswith(prefix) for prefix in prefixes) for _, tag in CARDS)


def test_the_guide_of_a_folder_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build(tiny_config(**THEIRS)).save_pretrained("my-vit")
    block = blocks_of(section("weights", "Your Hugging Face folder"))[0]
    names = {"images": np.full((2, 32, 32, 3), 99.0, "float32"), "labels": np.array([0, 1])}
    execute(block, "weights", names)
    ours, theirs = (names[name](names["images"]) for name in ("model", "again"))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert '"1": "dog"' in (tmp_path / "my-pets" / "config.json").read_text()


def test_the_guide_of_names_runs(tmp_path, monkeypatch):
    for package in ("tokenizers", "usearch"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_vit.image_text.classifier.TEMPLATES", ("{}",))
    write_open_clip(tmp_path / "clip-vit-base-patch32")
    write_vocabulary(tmp_path / "clip-vit-base-patch32")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("float32")
    names = {"images": images, "labels": np.array([0, 1]), "np": np}
    names |= {"few_images": np.tile(images, (2, 1, 1, 1)), "few_labels": np.array([0, 1, 0, 1])}
    write_folder(tmp_path / "photos", count=2)
    for block in blocks_of(read("zero-shot")):
        for text in ("a photo of a ", "a drawing of a ", "a sketch of a ", "red "):
            block = block.replace(text, "")  # the small tower has 12 ids
        execute(block, "zero-shot", names)
    assert names["probabilities"].shape == (2, 3) and names["logits"].shape == (2, 2)
    assert (tmp_path / "pets.keras").exists()
    assert (tmp_path / "copy/open_clip_model.safetensors").exists()
    assert len(names["birds"]) == 3 and names["similar"][0].file == names["birds"][0].file
    assert names["found"] == [answer.file for answer in names["birds"]]
    assert (tmp_path / "birds.html").exists() and names["thresholds"].shape == (2,)
    expected = names["head"](names["towers"].encode_images(images))
    fused = names["fused"].predict(images, verbose=0)
    np.testing.assert_allclose(fused, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_guide_of_captions_runs(tmp_path, monkeypatch):
    """A text tower that is trained writes its towers, and another learns from stored features."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_vit.image_text.classifier.TEMPLATES", ("{}",))
    write_folder(tmp_path / "photos", ("cat", "dog"))
    write_open_clip(tmp_path / "clip-vit-base-patch32")
    write_vocabulary(tmp_path / "clip-vit-base-patch32")
    names = {}
    for block in blocks_of(read("image-text-training")):
        for text in ("a photo of a ", "a small "):
            block = block.replace(text, "")  # the small tower has 12 ids
        execute(block, "image-text-training", names)
    assert (tmp_path / "trained/open_clip_model.safetensors").exists()
    assert names["classifier"].class_names == ("cat", "dog")
    assert names["features"].values.shape == (12, 32) and names["own"].logit_scale != 2.3
