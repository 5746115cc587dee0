import io
import json
import tarfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.image_text.caption_shards import read_caption_shards, read_tfds_captions

IMAGES = [
    tf.io.encode_png(np.full((4, 4, 3), value, "uint8")).numpy() for value in range(0, 250, 50)
]


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def check(pairs, captions):
    assert pairs.texts() == captions
    batches = pairs.read((0, len(captions)), None, 0).map(
        lambda item, label, _: (pairs.load(item), label)
    )
    loaded = [image for image, _ in batches.as_numpy_iterator()]
    assert loaded == IMAGES[: len(captions)]


def test_members_of_one_name_in_a_tar_are_a_pair(tmp_path):
    write_tar(
        tmp_path / "a-0.tar",
        [
            ("d/0.png", IMAGES[0]), ("d/0.txt", b" one\n"), ("d/0.cls", b"3"),
            ("e/0.json", json.dumps({"caption": "two", "width": 4}).encode()),
            ("e/0.png", IMAGES[1]),
        ],
    )  # fmt: skip
    write_tar(tmp_path / "a-1.tar", [("9.seg.txt", b"no"), ("9.PNG", IMAGES[2]), ("9.txt", b"3")])
    write_tar(
        tmp_path / "b.tar",
        [
            ("1.png", IMAGES[0]),
            ("1.json", b'["caption"]'),
            ("2.txt", b"two"),
            ("3.txt", b"\xff"),
            ("3.png", IMAGES[2]),
            ("4.txt", b"four"),
            ("4.json", b'{"text": "four}'),
            ("4.png", IMAGES[2]),
        ],
    )
    reasons = (
        r"(?s)4 incomplete.*2 has no image.*of 1\.png cannot be read: it is no object.*"
        r"the \.txt of 3\.png .*utf-8.*the \.json of 4\.png cannot be read: Unterminated string"
    )
    with pytest.raises(ValueError, match=reasons):
        read_caption_shards(tmp_path / "b.tar")
    check(read_caption_shards(tmp_path / "a-*.tar"), [("one",), ("two",), ("3",)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"caption": "a', "the .json of 1.png cannot be read: Unterminated string"),
        (b"[1]", "the .json of 1.png cannot be read: it is no object"),
        (
            b'{"caption": "a \\ud800"}',
            "1.png cannot be read: half of a surrogate pair in a caption",
        ),
        (b'{"caption": null}', "1.png has no caption in .txt or .json of up to 1 MiB"),
        (b'{"caption": "' + b"a" * (1 << 20) + b'"}', "no caption in .txt or .json of up to 1 MiB"),
    ],
)
def test_json_without_a_caption_says_why(content, message, tmp_path):
    write_tar(tmp_path / "a.tar", [("1.png", IMAGES[0]), ("1.json", content)])
    with pytest.raises(ValueError, match=message):
        read_caption_shards(tmp_path / "a.tar")


def test_parquet_files_are_read_by_their_columns(tmp_path):
    import pyarrow.parquet

    kinds = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    left = iter(IMAGES)
    for number, captions in enumerate([["a cat", "a dog"], ["\u732b", "b"], ["c"]]):
        rows = [{"bytes": next(left), "path": None} for _ in captions]
        table = {"image": pyarrow.array(rows, kinds), "text": captions}
        path = tmp_path / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=1)
    pairs = read_caption_shards(tmp_path / "*.parquet")
    check(pairs, [("a cat",), ("a dog",), ("\u732b",), ("b",), ("c",)])
    several = {"photo": IMAGES[:2], "captions": [["a", " ", "b"], ["c"]], "label": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(several), tmp_path / "several.parquet")
    check(read_caption_shards(tmp_path / "several.parquet"), [("a", "b"), ("c",)])
    check(read_caption_shards(tmp_path / "several.parquet", "photo"), [("a", "b"), ("c",)])
    for captions, message in (([["a"], []], "row 1 has no caption"), (None, "has no column")):
        table = {**several, "captions": captions or ["a", "b"]}
        if captions is None:
            table["words"] = table.pop("captions")
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "wrong.parquet")
        with pytest.raises(ValueError, match=message):
            read_caption_shards(tmp_path / "wrong.parquet")


def test_records(tmp_path):
    texts = [[b"one", b"eins"], [b"two"], [b"three"]]
    for part, rows in enumerate((range(2), range(2, 3))):
        with tf.io.TFRecordWriter(str(tmp_path / f"{part}.tfrecord")) as writer:
            for row in rows:
                writer.write(example(IMAGES[row], texts[row], "text"))
    pairs = read_caption_shards(tmp_path / "*.tfrecord", caption_name="text")
    check(pairs, [("one", "eins"), ("two",), ("three",)])
    with pytest.raises(ValueError, match="record 0 has no caption; features: image, text"):
        read_caption_shards(tmp_path / "0.tfrecord")
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(example(IMAGES[0], ["h\u00f6hle".encode("latin-1")], "text"))
    with pytest.raises(ValueError, match="record 0 has a text that is not UTF-8"):
        read_caption_shards(tmp_path / "a.tfrecord", caption_name="text")


def example(image, texts, name):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=texts)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


class TinyCaptions(tfds.core.GeneratorBasedBuilder):
    """Captions as of COCO in TFDS, and one more."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        captions = tfds.features.Sequence({"id": np.int64, "text": tfds.features.Text()})
        features = {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "captions": captions,
            "title": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"val": self._examples(range(5)), "test": self._examples([1, 3])}

    def _generate_examples(self):
        raise NotImplementedError

    def _examples(self, numbers):
        for n in numbers:
            captions = [{"id": 10 * n + i, "text": f"{n} {i}"} for i in range(1 + n % 2)]
            image = io.BytesIO(IMAGES[n])
            yield n, {"image": image, "captions": captions, "title": f" title {n}"}


def test_captions_of_tfds_are_read_by_name_and_slice(tmp_path):
    config = tfds.download.DownloadConfig(num_shards=2)
    TinyCaptions(data_dir=tmp_path).download_and_prepare(download_config=config)
    pairs = read_tfds_captions("tiny_captions", "val", tmp_path)
    check(pairs, [("0 0",), ("1 0", "1 1"), ("2 0",), ("3 0", "3 1"), ("4 0",)])
    assert pairs.name == "tiny_captions/1.0.0 val"
    some = read_tfds_captions("tiny_captions", "val[1:3]+test", tmp_path, caption_name="title")
    assert some.texts() == [("title 1",), ("title 2",), ("title 1",), ("title 3",)]
    load = some.read((0, 4), None, 0).map(lambda item, label, _: some.load(item))
    assert list(load.as_numpy_iterator()) == [IMAGES[n] for n in (1, 2, 1, 3)]
    with pytest.raises(ValueError, match=r"no caption; features: captions/id, captions/text, im"):
        read_tfds_captions("tiny_captions", "test", tmp_path, caption_name="caption")
    with pytest.raises(ValueError, match=r"has no split 'train'\. It has test, val"):
        read_tfds_captions("tiny_captions", "train", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not in .* Pass `download=True`"):
        read_tfds_captions("tiny_captions", "val", tmp_path / "other")


def test_captions_of_tfds_in_other_files_are_refused(tmp_path):
    TinyCaptions(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    with pytest.raises(ValueError, match=r"must be stored as TFRecords.*files of array_record"):
        read_tfds_captions("tiny_captions", "val", tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no files"):
        read_caption_shards(tmp_path / "*.tar")
    write_tar(tmp_path / "z.tar", [("1.png", IMAGES[0]), ("1.txt", b"a")], "w:gz")
    with pytest.raises(ValueError, match=r"z\.tar is no tar .* Unpack compressed"):
        read_caption_shards(tmp_path / "z.tar")
    (tmp_path / "r.tfrecord").write_bytes(b"x" * 40)
    with pytest.raises(ValueError, match="no TFRecord file, is compressed, or is cut off"):
        read_caption_shards(tmp_path / "r.tfrecord")
    with pytest.raises(ValueError, match="all tars, all Parquet files, or all TFRecords"):
        read_caption_shards([tmp_path / "z.tar", tmp_path / "r.tfrecord"])
    with tf.io.TFRecordWriter(str(tmp_path / "s.tfrecord")) as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(ValueError, match=r"record 0 is no `tf\.train\.Example`"):
        read_caption_shards(tmp_path / "s.tfrecord")
