"""export/beam/archive.py on Beam's DirectRunner with two worker processes.

Needs apache-beam, which `scripts/test --slow` installs; `BEAM_PYTHON` names another Python.
"""

import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.data.record_folder import read_record_folder
from tests.data.containers import write_tar

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = os.environ.get("BEAM_PYTHON", sys.executable)
CIFAR = pathlib.Path(os.environ.get("CIFAR", "/tmp/cifar/train"))
COUNT, DAMAGED = 5_000, 50
TWO_PROCESSES = ("--runner", "DirectRunner", "--direct_running_mode", "multi_processing",
                 "--direct_num_workers", "2")  # fmt: skip
NAMES = [f"class {number}" for number in range(10)]


def has_beam():
    check = [PYTHON, "-c", "import importlib.util as u; assert u.find_spec('apache_beam')"]
    return subprocess.run(check, stderr=subprocess.DEVNULL).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_beam(), reason="apache-beam is not installed"),
]


def pictures(count):
    """JPEGs of CIFAR-10 with their classes, or windows of committed pictures."""
    rng = random.Random(0)
    files = sorted(CIFAR.glob("*/*.jpg"))
    if len(files) >= count:
        for file in rng.sample(files, count):
            yield file.parent.name, file.read_bytes()
        return
    sources = [
        Image.open(path).convert("RGB") for path in sorted(ROOT.glob("docs/pictures/*.png"))[:10]
    ]
    for number in range(count):
        source = sources[number % len(sources)]
        left, top = (rng.randrange(side - 32) for side in source.size)
        pixels = source.crop((left, top, left + 32, top + 32))
        encoded = tf.io.encode_jpeg(np.asarray(pixels)).numpy()
        yield f"kind_{number % len(sources)}", encoded


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """5,000 image files in folders of classes, of which every hundredth is damaged."""
    folder, damaged = tmp_path_factory.mktemp("archive"), set()
    for number, (name, data) in enumerate(pictures(COUNT)):
        path = folder / name / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        if number % 100 == 0:
            damaged.add(str(path))
            data = (data[: len(data) // 2], b"", b"no image")[number // 100 % 3]
        path.write_bytes(data)
    assert len(damaged) == DAMAGED
    return folder, damaged


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    keras.utils.set_random_seed(0)
    vit = keras_vit.create_model("vit_ti16", classes=10, input_shape=(32, 32, 3))
    head = vit.get_layer("head").weights[0]
    head.assign(keras.random.normal(head.shape, stddev=0.2, seed=1))
    folder = tmp_path_factory.mktemp("model")
    keras_vit.export_saved_model(vit, folder, labels=NAMES, verbose=False)
    return folder / "1"


def start(*words, runner=TWO_PROCESSES):
    command = [PYTHON, str(ROOT / "export/beam/archive.py"), *map(str, words), *runner]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def run(*words, status=0, **options):
    process = start(*words, **options)
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, err[-3000:]
    return out if status == 0 else err


def read_lines(folder, kind):
    paths = sorted((folder / kind).glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def read_rows(folder):
    tables = map(pyarrow.parquet.read_table, sorted(folder.glob("predictions-*.parquet")))
    return [row for table in tables for row in table.to_pylist()]


def check_once(output, archive):
    """Every image is in one of the outputs, once, and damaged ones are the unreadable ones."""
    folder, damaged = archive
    rows, unreadable = read_rows(output), read_lines(output, "unreadable")
    names = collections.Counter(each["name"] for each in (*rows, *unreadable))
    assert set(names) == set(map(str, folder.glob("*/*.jpg"))) and set(names.values()) == {1}
    assert {each["name"] for each in unreadable} == damaged
    assert not list(output.rglob("*.unfinished"))
    return rows


def children(process):
    """Processes below another, by their ids."""
    found, pending = [], [process]
    while pending:
        for path in pathlib.Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            below = list(map(int, path.read_text().split()))
            found += below
            pending += below
    return found


def is_worker(process):
    """Whether a process is a worker of Beam, and not the shell that started it."""
    try:
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"python" in words[0] and any(b"sdk_worker_main" in word for word in words)


def test_every_image_is_predicted_once_also_where_a_worker_is_killed(archive, model, tmp_path):
    output = tmp_path / "killed"
    words = ("predict", archive[0] / "*/*.jpg", "--model", model, "--output", output)
    process = start(*words, "--per-part", 125)
    done = {}
    while len(done) < 3 and process.poll() is None:
        time.sleep(0.02)
        done = {path: path.stat().st_mtime_ns for path in (output / "parts").glob("*.json")}
    workers = [each for each in children(process.pid) if is_worker(each)]
    assert len(workers) >= 2  # several processes
    os.kill(workers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    assert "parts are missing and repeated" in out
    rows = check_once(output, archive)
    assert all(path.stat().st_mtime_ns == changed for path, changed in done.items())  # kept
    index = json.loads((output / "index.json").read_text())
    assert index["images"] == COUNT and index["unreadable"] == DAMAGED
    assert "kept: " in out and "num_inferences: " in out  # metrics
    check_numbers(rows, model)


def check_numbers(rows, model):
    """A plain loop in this process gives the same classes and scores."""
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    some = rows[::100]
    images = [pathlib.Path(row["name"]).read_bytes() for row in some]
    found = signature(image_bytes=tf.constant(images))
    np.testing.assert_allclose([row["scores"] for row in some], found["scores"], atol=1e-5)
    expected = [name.decode() for name in found["classes"][:, 0].numpy()]
    assert [row["classes"][0] for row in some] == expected


def test_bundles_that_a_runner_repeats_give_no_doubles(archive, model, tmp_path):
    words = ("predict", archive[0] / "*/*.jpg", "--model", model, "--output", tmp_path / "twice")
    repeated = (*TWO_PROCESSES, "--direct_runner_bundle_repeat", "1")
    run(*words, "--attempts", "1", "--outputs", "features", runner=repeated)
    rows = check_once(tmp_path / "twice", archive)
    assert len(rows[0]["features"]) == 192
    assert run(*words, "--attempts", "1", "--outputs", "features").count("{") == 1  # nothing to do
    text = run(*words, "--outputs", "logits", status=1)
    assert "holds parts of other images or settings" in text


def test_tars_and_records_and_filters(archive, model, tmp_path):
    folder, damaged = archive
    names = [str(path) for path in sorted(folder.glob("*/*.jpg"))[:60]]
    labels = sorted({path.name for path in folder.iterdir()})
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    for part in range(3):
        members = []
        for name in names[20 * part : 20 * part + 20]:
            path = pathlib.Path(name)
            members += [
                (path.name, path.read_bytes()),
                (f"{path.stem}.cls", path.parent.name.encode()),
            ]
        write_tar(tmp_path / f"{part}.tar", members)
    cut = tmp_path / "2.tar"
    cut.write_bytes(cut.read_bytes()[:20_000])
    words = ("records", tmp_path / "*.tar", "--labels", tmp_path / "labels.txt")
    run(*words, "--output", tmp_path / "records")
    images = read_record_folder(tmp_path / "records")
    unreadable = read_lines(tmp_path / "records", "unreadable")
    assert images.class_names == tuple(labels)
    assert "2.tar" in unreadable[-1]["name"] and "is cut off" in unreadable[-1]["reason"]
    bad = sum(name in damaged for name in names[:40])
    assert 40 - bad < images.num_images < 60
    stored = [(image, int(y)) for image, y in images.in_memory().read((0, 40 - bad), None, 0)]
    whole = [name for name in names[:40] if name not in damaged]
    for name, (image, label) in zip(whole, stored, strict=True):
        path = pathlib.Path(name)
        assert image.numpy() == path.read_bytes() and labels[label] == path.parent.name

    words = ("predict", tmp_path / "records/*.tfrecord", "--model", model, "--form", "tfrecord")
    run(*words, "--output", tmp_path / "found", "--outputs", "scores", "--min-score", "0.2")
    found = sorted((tmp_path / "found").glob("*.tfrecord"))
    records = [record for path in found for record in tf.data.TFRecordDataset(str(path))]
    filtered = read_lines(tmp_path / "found", "filtered")
    assert len(records) + len(filtered) == images.num_images
    scores = [tf.train.Example.FromString(r.numpy()).features.feature["scores"] for r in records]
    assert all(each.float_list.value[0] >= 0.2 for each in scores)
    text = run("predict", tmp_path / "*", "--model", model, "--output", tmp_path / "x", status=1)
    assert "files of one kind are expected" in text


def test_records_of_files_are_those_of_a_folder(archive, tmp_path):
    folder, damaged = archive
    output = tmp_path / "records"
    run("records", folder / "*/*.jpg", "--output", output)
    images = read_record_folder(output)
    assert images.num_images == COUNT - DAMAGED
    assert images.class_names == tuple(sorted(path.name for path in folder.iterdir()))
    assert {each["name"] for each in read_lines(output, "unreadable")} == damaged
