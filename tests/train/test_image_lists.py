"""A run continues only with the images that it began with."""

from __future__ import annotations

import json

import pytest

from keras_vit.train.image_lists import describe_lists
from keras_vit.train.run_folder import open_folder


def test_a_run_goes_on_with_the_same_images_alone(tmp_path):
    now = {"image_lists": describe_lists({"training": "abc", "validation": "d"})}
    (tmp_path / "states").mkdir()
    (tmp_path / "states/epoch-000000-batch-000000002.worker-0.state").touch()
    (tmp_path / "config.json").write_text("{}")
    with pytest.warns(UserWarning, match="Whether they have changed is not checked"):
        open_folder(tmp_path, now)  # of an older version
    (tmp_path / "config.json").write_text(json.dumps(now))
    open_folder(tmp_path, now)
    open_folder(tmp_path, {**now, "held_out": "a 1 of 4"})  # which older versions do not write
    for names, message in (
        ({"training": "abce", "validation": "d"}, "were 3 training images, there are 4"),
        ({"training": "abc", "validation": "e"}, "run: some of the 1 validation images are others"),
        ({"training": "abc"}, "were 1 validation images, there are 0"),
    ):
        with pytest.raises(ValueError, match=message):
            open_folder(tmp_path, {"image_lists": describe_lists(names)})
