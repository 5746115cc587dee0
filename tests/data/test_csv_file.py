"""Images with the labels or numbers of a CSV file."""

from __future__ import annotations

import os

import numpy as np
import pytest

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.csv_file import read_csv
from keras_vit.data.image_set import check_same_classes, read_arrays
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.sources import open_images, open_training_data
from tests.data.pictures import encoded

TRANSFORM = InputTransform((8, 8))


@pytest.fixture
def folder(tmp_path):
    """Images a.png to d.png, and e.JPG, which is no image."""
    for i, name in enumerate("abcd"):
        image = np.full((8, 8, 3), 50 * i, "uint8")
        (tmp_path / f"{name}.png").write_bytes(encoded(image, "png"))
    (tmp_path / "e.JPG").write_bytes(b"no image")
    return tmp_path


def write(folder, text, name="labels.csv", **options):
    path = folder / name
    path.write_bytes(text.encode(**options))
    return path


@pytest.mark.parametrize(
    ("text", "task", "names", "labels"),
    [
        ("file,label\na.png,cat\nb.png,dog\n", "single_label", ("cat", "dog"), [0, 1]),
        (
            "file,labels\na.png,cat|dog\n\nb.png, dog ; cow \n",
            "multi_label",
            ("cat", "cow", "dog"),
            [[1, 0, 1], [0, 1, 1]],
        ),
        ("id;sun;rain\r\na;1;0\r\nb;0;0\r\n", "multi_label", ("sun", "rain"), [[1, 0], [0, 0]]),
        ('\ufeffid\tage\na\t"1.5"\nb\t-3e1\n', "regression", ("age",), [[1.5], [-30]]),
        ("file,x,y\na.png,1,2\nb.png,0,7\n", "regression", ("x", "y"), [[1, 2], [0, 7]]),
    ],
)
def test_the_columns_decide_the_task(folder, text, task, names, labels):
    images = read_csv(write(folder, text))
    assert (images.task, images.class_names) == (task, names)
    np.testing.assert_array_equal(images.labels, labels)
    assert [name.rsplit("/")[-1] for name in images.file_names()] == ["a.png", "b.png"]
    one, other = images.split(1)
    assert one.task == other.task == images.in_memory().task == task
    for x, y in eval_batches(images, TRANSFORM, 2):
        assert x.shape == (2, 8, 8, 3) and y.dtype == "float32"
        vectors = np.eye(2)[labels] if task == "single_label" else labels
        np.testing.assert_array_equal(y, vectors)


def test_whole_numbers_need_a_task(folder):
    path = write(folder, "file,grade\na.png,0\nb.png,4\nc.png,10\n")
    with pytest.raises(ValueError, match=r'whole numbers.*task="single_label".*--task'):
        read_csv(path)
    assert read_csv(path, task="single_label").class_names == ("0", "10", "4")
    np.testing.assert_array_equal(read_csv(path, task="regression").labels, [[0], [4], [10]])
    path = write(folder, "file,sick\na.png,0\nb.png,1\n")
    assert read_csv(path, task="multi_label").class_names == ("sick",)


def test_all_problems_are_listed_with_their_lines(folder):
    text = (
        "file,x,y\na.png,1.5,2\nnone.png,1,\n,1,2\nb.png,one,nan\na.png,0,1\nc.png,1\ne.JPG,1,1\n"
    )
    with pytest.raises(ValueError, match="has 8 problems") as problems:
        read_csv(write(folder, text))
    lines = [line.split(":")[0].strip() for line in str(problems.value).splitlines()[1:]]
    assert lines == [f"line {number}" for number in (3, 3, 4, 5, 5, 6, 7, 8)]
    for text in (
        "no value for y", "none.png does not exist", "no image is named", "x is no number: 'one'",
        "y is no number: 'nan'", "a.png is in line 2 already", "2 cells, and 3 columns",
    ):  # fmt: skip
        assert text in str(problems.value)
    with pytest.raises(ValueError, match=r"line 2: no label.*\n.*line 4: x is none of the classes"):
        read_csv(write(folder, "f,l\na,\nb,u|v\nc,x|v\n"), class_names=["u", "v"])
    with pytest.raises(ValueError, match="line 3: sun must be 0 or 1: 2"):
        read_csv(write(folder, "f,sun,rain\na,1,0\nb,2,1\n"), task="multi_label")
    many = "f,x\n" + "".join(f"{i}.png,1.5\n" for i in range(30))
    with pytest.raises(ValueError, match=r"has 30 problems:(?s:.*)and 10 more"):
        read_csv(write(folder, many))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a line with the names of its columns, and one per image"),
        ("file,label\n", "needs a line with the names"),
        ("file\na.png\n", r"must name every column.*Received: the columns \['file'\]"),
        ("file,x\na.png,c\0t\nb.png,dog\n", "line 2: a NUL character|line contains NUL"),
        (",file,x\n0,a.png,1.5\n", "pandas wrote needs index=False"),
        ("file,x,x\na.png,1,2\n", "the column x twice"),
        ('file,x\na.png,"1\n', "line 2 is not CSV"),
        ("file,one,two\na.png,cat,dog\n", "one is no number: 'cat'"),
        ("file,label\na.png,cat\nb.png,cat\n", "one class, cat: telling apart needs two"),
    ],
)
def test_files_that_are_no_table(folder, text, message):
    with pytest.raises(ValueError, match=message):
        read_csv(write(folder, text))


def test_files_that_are_not_there_or_not_text(folder):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*labels.csv"):
        read_csv(folder / "labels.csv")
    path = write(folder, "file,x\nä.png,1.5\n", encoding="latin-1")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_csv(path)
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        read_csv(path, folder / "nowhere")
    with pytest.raises(ValueError, match="is one column"):
        read_csv(write(folder, "f,a,b\na,1,2\n"), task="single_label")


def test_names_of_any_length_and_number_are_refused_briefly(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"line 2: .*x does not exist\n.*x does not exist$"):
        read_csv(write(folder, f"f,y\n{'x' * 9000},1.5\n{'y' * 9000}x,1.5\n"))
    text = f"f,{'x' * 9000},y\n" + "a,,1.5\n" * 30
    with pytest.raises(ValueError, match=r"no value for x{80}\.\.\.\n") as error:
        read_csv(write(folder, text))
    assert len(str(error.value)) < 9000
    path = write(folder, "f,l\na,u|v\nb,v\nc,w\n")
    np.testing.assert_array_equal(read_csv(path).labels, [[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    monkeypatch.setattr("keras_vit.data.csv_file._MAX_LABELS", 8)
    with pytest.raises(ValueError, match=r"names 3 classes for 3 images: u, v, w\. .*or split the"):
        read_csv(path)
    monkeypatch.setattr("keras_vit.data.csv_file._MAX_CLASSES", 2)
    with pytest.raises(ValueError, match="At most 2 classes are read"):
        read_csv(write(folder, "f,l\na,u\nb,v\nc,w\n"))


def test_unreadable_images_can_be_skipped(folder):
    path = write(folder, "file,x\na,1.5\ne.JPG,2\nnone.png,3\n")
    with pytest.warns(UserWarning, match="2 files in .*labels.csv are left out"):
        images = read_csv(path, unreadable="skip")
    assert images.num_images == 1 and len(images.skipped) == 2
    assert images.in_memory().skipped == images.skipped
    with pytest.raises(ValueError, match=r"(?s)2: no value.*3: .*none.png does not"):
        read_csv(write(folder, "file,x,y\na,1.5,\nnone.png,3,2\n"), unreadable="skip")
    with pytest.raises(
        ValueError, match=r"(?s)None of the 1 images in .* not exist.* with --data-dir"
    ):
        read_csv(write(folder, "file,x\nno,1.5\n"), unreadable="skip")


def test_test_images_have_the_names_and_the_order_of_training(folder):
    training = read_csv(write(folder, "f,sun,rain\na,1,0\nb,0,1\n"))
    path = write(folder, "f,rain,sun\nc,0,1\nd,1,0\n", "test.csv")
    test = read_csv(path, class_names=training.class_names, task=training.task)
    np.testing.assert_array_equal(test.labels, [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="has the columns rain, sun, and the training images x"):
        read_csv(path, class_names=["x"], task="multi_label")
    with pytest.raises(ValueError, match=r"several times: sun\. Rename these classes"):
        read_csv(path, class_names=["sun", "rain", "sun"])
    numbers = read_csv(path, task="regression")
    with pytest.raises(
        ValueError, match="task='regression', and the training images 'multi_label'"
    ):
        check_same_classes(training.class_names, numbers, training.task)
    found = open_training_data(str(folder / "labels.csv"), None, str(path), 0, {"task": None})
    assert found.transfer_test is None and found.final_test.class_names == ("sun", "rain")
    with pytest.raises(ValueError, match="come from a CSV file"):
        open_images(str(folder), task="regression")


def test_labels_of_several_classes_are_smoothed_and_mixed():
    x = np.zeros((8, 8, 8, 3), "uint8")
    y = np.tile([[1, 0, 1], [0, 0, 0]], (4, 1))
    images = read_arrays(x, y, task="multi_label")
    smooth = Augmentation(crop="none", label_smoothing=0.2)
    for _, labels in train_batches(images, TRANSFORM, 8, smooth):
        np.testing.assert_allclose(np.unique(labels), [0.1, 0.9], rtol=1e-6)
    mixed = Augmentation(crop="none", mixup=0.5)
    for _, labels in train_batches(images, TRANSFORM, 8, mixed):
        assert labels.shape == (8, 3) and not set(np.asarray(labels).ravel()) <= {0, 1}
    with pytest.raises(ValueError, match="`class_weights` need one class for each image"):
        train_batches(images, TRANSFORM, 8, class_weights=[1, 1, 1])
    with pytest.raises(ValueError, match=r"need one class for each image.*'multi_label'"):
        images.balanced()
    numbers = read_arrays(x, y + 0.5, ["a", "b", "c"], task="regression")
    with pytest.raises(ValueError, match="Label smoothing is for classes"):
        train_batches(numbers, TRANSFORM, 8, smooth)


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 1], None, r"must have the shape \(2, K\).*Received: shape \(2,\)"),
        ([[0, 1], [1, 1]], ["a"], r"must have the shape \(2, 1\)"),
        ([[0, 2], [1, 1]], None, "must be 0 and 1"),
    ],
)
def test_arrays_of_labels_that_do_not_fit(labels, names, message):
    with pytest.raises(ValueError, match=message):
        read_arrays(np.zeros((2, 8, 8, 3), "uint8"), labels, names, task="multi_label")


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        (["disc", "square", "disc square"], r"spaces .*'disc\|square'"),
        (["disc square", "disc star", "square star"], r"spaces .*'disc\|square'"),
        (["scab, rust", "rust", "scab", "healthy"], r"commas .*'scab\|rust'"),
        (["16 0", "7 1 2 0", "1", "7 16", "2"], r"spaces .*'16\|0'"),
    ],
)
@pytest.mark.parametrize("task", [None, "multi_label"])
def test_labels_with_another_separator_are_no_classes(folder, labels, written, task):
    path = write_labels(folder, labels)
    with pytest.raises(ValueError, match=rf"several labels in a cell, {written}.*single_label"):
        read_csv(path, task=task)
    assert set(read_csv(path, task="single_label").class_names) == set(labels)
    assert read_csv(path, task=task, class_names=labels).num_classes == len(labels)


@pytest.mark.parametrize(
    "labels",
    [
        ["golden retriever", "labrador retriever", "persian cat", "siamese cat"],
        ["red car", "blue car", "red truck", "blue truck"],
        ["maple tree", "oak tree", "bee", "motor bike", "bike"],
        ["disc|square", "disc", "square", "big star|disc"],
        ["cat", "dog"],
        ["fire", "truck", *["car"] * 40, "fire truck"],  # one in 43 is no separator
    ],
)
def test_names_with_spaces_are_classes(folder, labels):
    names = {part for label in labels for part in label.split("|")}
    for task in (None, "multi_label"):
        assert set(read_csv(write_labels(folder, labels), task=task).class_names) == names


def write_labels(folder, labels):
    for index in range(len(labels)):
        (folder / f"{index}.png").write_bytes((folder / "a.png").read_bytes())
    rows = "".join(f'{index}.png,"{label}"\n' for index, label in enumerate(labels))
    return write(folder, f"file,label\n{rows}")


def test_backslashes_are_slashes(folder):
    (folder / "cat").mkdir()
    for name in "ab":
        (folder / "cat" / f"{name}.png").write_bytes((folder / f"{name}.png").read_bytes())
    path = write(folder, "file,label\ncat\\a.png,cat\ncat\\b,dog\n")
    names = [os.path.relpath(name, folder) for name in read_csv(path).file_names()]
    assert names == ["cat/a.png", "cat/b.png"]
    path = write(folder, "file,label\ncat\\a.png,cat\ncat/a.png,dog\n")
    with pytest.raises(ValueError, match="is in line 2 already"):
        read_csv(path)
