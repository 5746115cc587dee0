"""New images like the held-out ones are no drift; others are, with a page and an exit status."""

from __future__ import annotations

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.image_set import read_arrays
from keras_vit.trust.drift import compare_images
from tests.fixtures import images_for, tiny_vit
from tests.trust.pictures import brightness_folder


@pytest.mark.parametrize("fitted", [False, True])
def test_images_of_another_kind_are_far(fitted, tmp_path):
    model = tiny_vit(classes=2)
    photos = images_for(model, 160)
    labels = model.predict(photos, verbose=0).argmax(axis=1)
    held_out = read_arrays(photos[:80], labels[:80], ["cat", "dog"])
    if fitted:
        keras_vit.trust.fit_abstention(model, held_out)
    same = read_arrays(photos[80:], labels[80:], ["cat", "dog"])
    found = compare_images(model, held_out, same)
    whole, *classes = found.shifts
    assert (whole.images, whole.held_out, found.false_alarms) == (80, 80, 0.05)
    assert whole.rejected[1] <= whole.rejected[0] <= whole.rejected[2]
    assert not found.is_beyond() and whole.rejected[1] < 0.05
    assert sum(each.images for each in classes) == 80
    assert {each.name for each in classes} <= {"cat", "dog"}
    if fitted:
        features = keras_vit.features_of(model, "encoder_norm").predict(photos[80:], verbose=0)
        answers = model.abstention.outputs(np.ones((80, 2)), features["encoder_norm"][:, 0])
        np.testing.assert_allclose(found.typicality, answers["typicality"], rtol=1e-4)

    stripes = 255 * (np.arange(32) // (1 + np.arange(40)[:, None] % 8) % 2)  # of eight widths
    stripes = np.broadcast_to(stripes[:, None, :, None], (40, 32, 32, 3)).astype("uint8")
    far = compare_images(model, held_out, read_arrays(stripes, [0, 1] * 20))
    assert far.shifts[0].rejected[0] > 0.5 and far.is_beyond()
    _, low, high = far.shifts[0].change
    assert far.is_beyond(1.0, low - 0.01 if low > 0 else -high - 0.01)
    assert not far.is_beyond(1.0, max(abs(low), abs(high)))
    far.write_page(tmp_path / "p.html", read_arrays(stripes, [0, 1] * 20))
    page = (tmp_path / "p.html").read_text()
    assert page.count("<figure") == 24 and "Least typical images" in page


def test_the_command_has_an_exit_status(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brightness_folder(tmp_path / "photos", 80, (), -1)
    tiny_vit(classes=2).save("m.keras")
    words = ["train", "m.keras", "photos", "--validation", "0.3", "--steps", "4", "--output", "r"]
    assert main([*words, "--batch-size", "8"]) == 0
    assert main(["compare", "r", "photos", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["images"] == 80 and facts["page"] == "runs/compare.html"
    (tmp_path / "runs/compare.html").read_text().index("New images")
    with pytest.raises(SystemExit) as stop:
        main(["compare", "r", "photos", "--most-change", "-1"])
    assert stop.value.code == 1
