"""Settings and preprocessing of names of timm: computed from the architectures that they mean."""

from __future__ import annotations

import json
import pathlib

from keras_vit.config import field_value
from keras_vit.families.table import FAMILIES
from keras_vit.variants import NAMES, find_config
from keras_vit.weights.timm_settings import OTHERS, name_in_path, timm_pixels, timm_settings
from tests.official import GOLDEN

TIMM = json.loads((GOLDEN / "timm_parameters.json").read_text())
TESTS = {"test_vit", "test_vit2", "test_vit3"}  # its models for tests


def test_every_name_of_timm_has_the_settings_of_its_configuration():
    for name in {*TIMM, *TESTS}:
        settings = timm_settings(name)
        assert settings is not None, name
        config = find_config(name)
        differing = {k for k, v in settings.items() if v != field_value(config, k)}
        assert differing <= {"gelu", "position_resize", "map_prefix_tokens"}, name


def test_names_that_are_written_are_timms():
    written = {name.timm for name in NAMES.values() if name.timm}
    written = {name for name in written if not name.endswith("_bit")}  # ResNets are not in TIMM
    assert written - TESTS <= set(TIMM)


def test_other_names_are_none_of_timms():
    for name in ("vit_b16", "B/16", "vit5_base_patch16_224", "vit_medium_patch16_224", "resnet50"):
        assert timm_settings(name) is None
    assert "ResPostBlock" in OTHERS["vit_base_patch16_rpn_224"]
    assert "vit_base_patch16_224" not in OTHERS


def test_only_what_differs_is_written_down():
    for stem, name in ((s, n) for family in FAMILIES for s, n in family.names.items()):
        config = find_config(stem)
        for field, value in name.settings.items():
            if (
                field == "map_prefix_tokens"
            ):  # of a pooling that the model_args of a file may choose
                continue
            assert field_value(config, field) != value, (stem, field)


def test_a_tag_tells_more_than_the_name():
    assert timm_pixels("vit_base_patch16_224").mean == (127.5,)
    assert timm_pixels("vit_base_patch16_224.mae").mean != (127.5,)
    assert timm_pixels("vit_base_patch16_224.bamboo").crop_ratio == 1.0
    assert timm_pixels("eva02_base_patch14_448").crop_ratio is None


def test_names_in_the_paths_of_both_caches():
    for path in (
        "hub/models--timm--vit_base_patch16_224.dino/a",
        "timm/vit_base_patch16_224.dino/b",
    ):
        assert name_in_path(pathlib.Path(path)) == "vit_base_patch16_224.dino"
    assert name_in_path(pathlib.Path("timm/resnet50/model.safetensors")) is None
