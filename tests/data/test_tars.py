"""Names and sizes in tars that no program writes."""

import tarfile

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.tars import load_item, make_item, read_tar
from keras_vit.errors import DamagedFileError

END = bytes(1024)


def padded(content):
    return content + bytes(-len(content) % 512)


def header(name, size, kind=b"0"):
    """A header of 512 bytes, of any size from -2**87 on."""
    octal = b"%011o\0" % size if 0 <= size < 8**11 else (
        bytes([255 if size < 0 else 128]) + (size % 2**88).to_bytes(11, "big")
    )  # fmt: skip
    parts = [(100, b"0000644\0"), (108, b"0000000\0" * 2), (124, octal), (136, b"0" * 11 + b"\0")]
    block = bytearray(512)
    for at, part in ((0, name), *parts, (148, b" " * 8), (156, kind), (257, b"ustar\x0000")):
        block[at : at + len(part)] = part
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name, content, kind=b"0"):
    return header(name, len(content), kind) + padded(content)


def pax(**fields):
    """A header about the next member."""
    records = b""
    for key, value in fields.items():
        record = b" %s=%s\n" % (key.encode(), value)
        length = len(record) + len(str(len(record) + 3))
        records += b"%d" % length + record
    return member(b"x", records, b"x")


GOOD = member(b"0.png", b"abc") + member(b"0.cls", b"1")


@pytest.mark.parametrize(
    "name", [b"2\x00x.png", b"2\x00512\x009.png", b"a\x1b[2J.png", b"\xff\xfe.png", b"\n.png"]
)
def test_images_of_any_name_are_read_at_their_place(name, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(GOOD + pax(path=name) + member(b"q", b"defg") + END)
    samples, problems = read_tar(str(path), (".cls",))
    assert not problems and len(samples) == 2
    assert samples[1].name.isprintable()
    items = [make_item(str(path), *each[:3], path.stat().st_mtime_ns) for each in samples]
    read = tf.data.Dataset.from_tensor_slices(np.array(items, object)).map(load_item)
    assert list(read.as_numpy_iterator()) == [b"abc", b"defg"]


def field(**fields):
    return pax(**{key: b"%d" % value for key, value in fields.items()}) + member(b"q.png", b"1")


LARGE = 2**62
HOSTILE = {
    "pax header": header(b"x", LARGE, b"x"),
    "pax header for all": header(b"x", LARGE, b"g"),
    "long name": header(b"x", LARGE, b"L"),
    "long link": header(b"x", 8**11 - 1, b"K"),
    "Solaris": header(b"x", LARGE, b"X"),
    "negative long name": header(b"x", -5, b"L"),
    "negative": header(b"1.png", -5),
    "far back": header(b"1.png", -4096),
    "large": header(b"1.png", LARGE),
    "folder": header(b"1", -4096, b"5"),
    "digits": member(b"x", b"1" * 100_000, b"x"),
    "many headers": b"".join(pax(comment=b"x") for _ in range(2_000)),
    "many fields": member(
        b"x", b"".join(b"%d k%05d=x\n" % (13 - 2, i) for i in range(1000)), b"g"
    ) + member(b"q", b""),
    "sparse": header(b"1.png", 0, b"S")[:482] + b"\1" + bytes(29),
    "pax size": field(size=LARGE),
    "pax size of -4096": field(size=-4096),
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_sizes_that_no_file_has_are_refused(hostile, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(GOOD + hostile)
    with pytest.raises(DamagedFileError, match=r"a\.tar is "):
        read_tar(str(path), (".cls",))


def test_headers_of_gnu_and_pax_are_read(tmp_path):
    for number, kind in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w", format=kind, pax_headers={"comment": "a"}) as tar:
            tar.addfile(tarfile.TarInfo("é" * 2_000 + ".png"))
        samples, problems = read_tar(str(path), ())
        assert samples[0].name == "é" * 2_000 + ".png" and not problems
