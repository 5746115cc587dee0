"""The page about a model: what stands in it, and what a real browser makes of it."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.models.resnet import build_resnet
from keras_vit.report.model_page import write_report
from keras_vit.report.page import human, human_bytes
from tests.analysis.test_image_batches import Stream
from tests.checks import quick
from tests.fixtures import fill_random
from tests.models.test_feature_extraction import composed, random_images, random_vit

pytest.importorskip("matplotlib")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images, self.addresses, self.tags, self.words = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        self.addresses += [attrs[key] for key in ("src", "href") if key in attrs]
        if tag == "img":
            self.images.append(attrs["alt"])

    def handle_data(self, data):
        self.words.append(data)


def page_of(model, tmp_path, images=None, **options):
    path = write_report(model, tmp_path / "report.html", images, **options)
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_needs_no_other_file_and_has_every_picture(tmp_path):
    model, images = random_vit(image_size=(32, 48), num_registers=2)
    page = page_of(model, tmp_path, images)
    assert all(a.startswith(("data:image/png;base64,", "#")) for a in page.addresses)
    assert "script" not in page.tags and "link" not in page.tags
    assert len(page.images) == 8
    assert "Left out" not in page.text
    assert f"{model.count_params():,}" in page.text
    assert "num_registers 2" in page.text and "No checkpoint was loaded" in page.text


def test_predictions_are_those_of_the_model(tmp_path):
    model, images = random_vit()
    names = [f"<{letter}><script>alert(1)</script>" for letter in "abcdefghij"]
    model.load_report = "<img src=x onerror=alert(1)>"
    model.class_names = names
    page = page_of(model, tmp_path, images)
    assert "script" not in page.tags and "x" not in page.addresses
    assert "<img src=x onerror=alert(1)>" in page.text
    logits = np.asarray(model(images))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for share in shares:
        assert f"{names[share.argmax()]} {share.max():.1%}" in page.text


@pytest.mark.parametrize("kind", quick(["relative", "hybrid", "bit"], "bit"))
def test_pictures_that_do_not_apply_are_replaced_by_the_reason(kind, tmp_path):
    reasons = []
    if kind == "relative":
        options = {"position_embedding": "relative", "classes": None, "pooling": None}
        model, images = random_vit(**options)
        reasons = ["no position embeddings", "must have one output of shape (batch, classes)"]
    elif kind == "hybrid":
        model, images = random_vit(stem=ResNetStem((1,)), patch_size=2)
    else:
        config = ResNetConfig(stages=(1,), image_size=32, classes=4)
        model, images = build_resnet(config), random_images(config)
        reasons = ["no position embeddings", *["has no TransformerBlock"] * 6]
    fill_random(model)
    page = page_of(model, tmp_path, images)
    assert page.text.count("Left out") == len(reasons)
    assert all(reason in page.text for reason in reasons)
    assert len(page.images) == 8 - len(reasons)


def test_a_model_of_the_users_own_has_a_page(tmp_path):
    _, model, _ = composed("nested")
    page = page_of(model, tmp_path)
    assert "A model of its own, of the layers" in page.text and "block_1" in page.text


@pytest.mark.slow
def test_images_stream_into_the_page(tmp_path):
    model, images = random_vit()
    stream = Stream((32, 32, 3), batch_size=2)
    page = page_of(model, tmp_path, stream)
    assert len(page.images) == 8 and stream.most <= 3
    with pytest.raises(ValueError, match="an iterator can be read once"):
        page_of(model, tmp_path, iter([images]))


def test_a_load_report_stands_in_the_page(tmp_path):
    model, _ = random_vit()
    model.load_report = "150 weights from <file>"
    page = page_of(model, tmp_path)
    assert "150 weights from <file>" in page.text
    assert len(page.images) == 2


def test_large_numbers_are_readable():
    assert [human(x) for x in (12, 5_717_416, 86_567_656, 17_564e6)] == [
        "12",
        "5.72 M",
        "86.6 M",
        "17.6 G",
    ]
    assert [human_bytes(x) for x in (12, 1536, 1.5 * 2**30)] == ["12 B", "1.5 KiB", "1.5 GiB"]


def browse(path, folder, width, probe):
    """What a browser says about a page: the value of an expression in JavaScript."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no browser on the PATH: install the Debian package `chromium` to run this")
    text = path.read_text(encoding="utf-8")
    text = re.sub("<meta http-equiv[^>]*>", "", text)  # which forbids scripts
    script = f"<script>onload = () => document.body.dataset.seen = JSON.stringify({probe})</script>"
    inner = folder / "probed.html"
    inner.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    shown = subprocess.run(
        [*command, inner.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', shown.stdout).group(1)))


def test_a_page_is_replaced_whole_or_not_at_all(small_disk):
    model, _ = random_vit()
    path = write_report(model, small_disk.path / "report.html")
    before = path.read_bytes()
    small_disk.fill(leave=8192)
    with pytest.raises(OSError, match=r"The disk of .* is full"):
        write_report(model, path)
    assert path.read_bytes() == before


def test_a_real_browser_shows_the_page(tmp_path):
    model, images = random_vit()
    path = write_report(model, tmp_path / "report.html", images)
    found = browse(
        path,
        tmp_path,
        800,
        "{images: [...document.images].map(i => [i.naturalWidth, i.clientWidth, i.clientHeight]),"
        "wide: document.documentElement.scrollWidth, window: innerWidth,"
        "bars: [...document.querySelectorAll('.bar i')].map(i => i.clientWidth)}",
    )
    assert len(found["images"]) == 8
    assert all(
        natural > 100 and width > 100 and height > 50 for natural, width, height in found["images"]
    )
    assert found["wide"] <= found["window"]  # nothing pushes the page sideways
    assert max(found["bars"]) > 50
