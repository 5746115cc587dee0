"""The page of a search: one file, with thumbnails, and names of others as plain text."""

import base64
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.preview import write_png
from keras_vit.image_text.image_index import Answer, ImageIndex
from keras_vit.image_text.search_page import write_search_page


@pytest.fixture
def index(tmp_path):
    files = []
    for number, size in enumerate([(600, 300), (20, 30)]):
        files.append(str(tmp_path / f"{number}<i>.png"))
        write_png(files[-1], np.full((*size, 3), 100 * number))
    return ImageIndex(np.eye(2, dtype="float32"), tuple(files))


def test_a_page_shows_answers_and_the_image_that_was_searched(index, tmp_path):
    found = [Answer(1, index.files[1], 0.91), Answer(0, index.files[0], 0.1234, ("<x>",) * 7)]
    queries = {'a "red" <b>': found, pathlib.Path(index.files[1]): found[:1]}
    path = write_search_page(tmp_path / "page.html", index, queries)
    page = path.read_text()
    images = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    shapes = [tf.io.decode_jpeg(base64.b64decode(each)).numpy().shape for each in images]
    assert shapes == [(20, 30, 3), (320, 160, 3), (20, 30, 3), (20, 30, 3)]
    assert "<b>0.910</b>" in page and "<b>0.123</b>" in page
    assert f"2 images in {tmp_path}. Numbers" in page and "</b> 1&lt;i&gt;.png" in page
    assert "7 near-duplicates: " + ", ".join(["&lt;x&gt;"] * 5) + ", and 2 more" in page
    assert '<section id="a-&quot;red&quot;-&lt;b&gt;"><h2>a &quot;red&quot; &lt;b&gt;</h2>' in page
    assert "<i>" not in page and "<x>" not in page and "<h2>1&lt;i&gt;.png</h2>" in page


def test_names_in_no_common_folder_stay_whole(index, tmp_path):
    mixed = ImageIndex(index.features, ("b.png", index.files[0]))
    shown = [Answer(1, index.files[0], 0.5)]
    page = write_search_page(tmp_path / "page.html", mixed, {"x": shown}).read_text()
    assert "2 images. Numbers" in page and f"</b> {tmp_path}/0&lt;i&gt;.png" in page


def test_an_image_that_is_gone_is_named_and_nothing_is_written(index, tmp_path):
    pathlib.Path(index.files[0]).unlink()
    with pytest.raises(OSError, match=r"0<i>\.png"):
        write_search_page(tmp_path / "page.html", index, {"x": [Answer(0, index.files[0], 0.5)]})
    assert not (tmp_path / "page.html").exists()
