"""TIFF files are read by Pillow, with the values that other formats have."""

import io
import struct

import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.data import parquet, tars
from keras_vit.data.folder import examine
from keras_vit.data.headers import read_exif_orientation, read_size
from keras_vit.data.image_files import read_image
from keras_vit.data.pixel_range import find_small_range
from keras_vit.data.tiff import as_png
from tests.data.containers import stored, write_parquets, write_tars

RGB = np.random.default_rng(0).integers(0, 256, (9, 12, 3), "uint8")
DEEP = np.random.default_rng(1).integers(0, 65536, (9, 12)).astype("uint16")


def grey(values):
    return np.repeat(values[..., None], 3, -1)


def big_endian(values):
    """A TIFF of 16 bits whose numbers have the high byte first."""
    height, width = values.shape
    body = values.astype(">u2").tobytes()
    short = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 278: height}
    long = {273: 8 + 2 + 12 * 8 + 4, 279: len(body)}
    entries = [struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in short.items()]
    entries += [struct.pack(">HHII", tag, 4, 1, value) for tag, value in long.items()]
    return b"MM\0*" + struct.pack(">IH", 8, 8) + b"".join(sorted(entries)) + bytes(4) + body


def image(mode):
    return PIL.Image.fromarray(RGB).convert(mode)


@pytest.mark.parametrize(
    ("page", "options", "expected"),
    [
        *((image("RGB"), {"compression": f"tiff_{c}"}, RGB) for c in ("deflate", "lzw")),
        (image("RGB"), {"compression": "packbits"}, RGB),
        (image("RGB"), {"save_all": True, "append_images": [image("L")]}, RGB),
        (image("L"), {}, grey(np.asarray(image("L")))),
        (image("P"), {}, np.asarray(image("P").convert("RGB"))),
        (image("1"), {}, grey(np.asarray(image("1").convert("L")))),
        (image("CMYK"), {}, np.asarray(image("CMYK").convert("RGB"))),
        (PIL.Image.fromarray(np.dstack([RGB, RGB[..., :1]])), {}, RGB),
        (PIL.Image.fromarray(DEEP), {}, grey(DEEP >> 8)),
        (PIL.Image.fromarray(DEEP), {"compression": "tiff_deflate"}, grey(DEEP >> 8)),
    ],
)
def test_pixels_are_those_of_other_formats(tmp_path, page, options, expected):
    path = tmp_path / "a.tif"
    page.save(path, **options)
    assert examine(path, "pixels") is None and read_size(path) == (9, 12, "tiff")
    np.testing.assert_array_equal(read_image(path), expected)


def test_jpeg_inside_and_the_high_byte_first(tmp_path):
    path = tmp_path / "a.tiff"
    PIL.Image.new("RGB", (16, 16), (70, 70, 70)).save(path, compression="jpeg")
    assert (read_image(path) == 70).all()
    path.write_bytes(big_endian(DEEP))
    np.testing.assert_array_equal(read_image(path), grey(DEEP >> 8))
    path.write_bytes(big_endian(DEEP >> 4))
    assert find_small_range([path]).bits == 12


def test_orientation_is_followed(tmp_path):
    path, exif = tmp_path / "a.tif", PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.fromarray(RGB).save(path, exif=exif)
    assert (read_size(path), read_exif_orientation(path, "tiff")) == ((9, 12, "tiff"), 6)
    np.testing.assert_array_equal(read_image(path), np.rot90(RGB, -1))


def test_what_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "a.tif"
    for values, problem in (("float32", "is a TIFF of floats"), ("int32", "32-bit integers")):
        PIL.Image.fromarray(RGB[..., 0].astype(values)).save(path)
        assert problem in examine(path, "headers", 1000)
        with pytest.raises(OSError, match=rf"a.tif cannot be read .*{problem}"):
            read_image(path)
    PIL.Image.fromarray(RGB).save(path)
    assert "9 x 12 pixels, more than max_pixels=100" in examine(path, "headers", 100)
    with pytest.raises(OSError, match="more than max_pixels=100"):
        read_image(path, max_pixels=100)
    path.write_bytes(path.read_bytes()[:200])
    assert examine(path, "headers", 1000) == "is cut off: its end is missing"
    path.write_bytes(b"II*\0\x08\0\0\0\0\0")
    assert "is a TIFF file that Pillow does not read" in examine(path, "pixels")
    assert as_png(b"GIF89a") == b"GIF89a"


@pytest.mark.parametrize(
    ("module", "read", "write", "files"),
    [
        (tars, keras_vit.data.read_webdataset, write_tars, "train-*.tar"),
        (parquet, keras_vit.data.read_parquet, write_parquets, "train-*.parquet"),
    ],
)
def test_the_limit_of_pixels_is_that_of_the_caller(
    module, read, write, files, tmp_path, monkeypatch
):
    write(tmp_path)
    limits = []
    monkeypatch.setattr(module, "as_png", lambda data, limit: limits.append(limit) or data)
    images = read(str(tmp_path / files), max_pixels=123)
    assert len(stored(images)) == len(limits) == 12
    assert set(limits) == {123}


def test_folders_tables_and_batches_have_tiff(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        PIL.Image.fromarray(RGB).save(tmp_path / name / "0.tif", compression="tiff_lzw")
        PIL.Image.fromarray(RGB).save(tmp_path / name / "1.png")
    images = keras_vit.read_folder(tmp_path, check="pixels")
    assert images.num_images == 4 and images.are_files
    assert images.load(images.rows[0][0]).numpy()[:4] == b"\x89PNG"  # also in eager mode
    transform = keras_vit.data.InputTransform((9, 12))
    ((x, _),) = keras_vit.data.eval_batches(images, transform, 4)
    np.testing.assert_array_equal(x, np.stack([RGB] * 4))
    (tmp_path / "a.csv").write_text("file,label\ncat\\0,cat\ndog/0.tif,dog\n")
    assert keras_vit.data.read_csv(tmp_path / "a.csv").num_images == 2
    report = keras_vit.data.check_folder(tmp_path, decode=False)
    assert report.parts[0].formats == {"tiff": 2, "png": 2}
    assert report.parts[0].sizes[0] == (9, 12)


def test_a_tar_has_tiff(tmp_path):
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.tif", "__MACOSX/._0.tif", "0.cls", "1.tif", "1.cls"):
            file = io.BytesIO()
            if name.endswith("tif"):
                PIL.Image.fromarray(RGB).save(file, "TIFF")
            else:
                file.write(name[:1].encode())
            member = tarfile.TarInfo(name)
            member.size = file.tell()
            file.seek(0)
            tar.addfile(member, file)
    images = keras_vit.data.read_webdataset(tmp_path / "a.tar", ["a", "b"])
    assert images.file_names()[0].endswith("a.tar:0.tif") and images.num_images == 2
    assert images.load(images.rows[0][0]).numpy()[:4] == b"\x89PNG"
    ((x, _),) = keras_vit.data.eval_batches(images, keras_vit.data.InputTransform((9, 12)), 2)
    np.testing.assert_array_equal(x, np.stack([RGB] * 2))
