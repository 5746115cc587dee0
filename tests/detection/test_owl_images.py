"""Images for OWL-ViT and OWLv2 are resized as transformers does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import skimage.data

from keras_vit.detection.owl_images import displayed_size, owl_pixels
from scripts.golden.network_formula import chosen_values
from tests.detection.open_vocabulary import CASES

MEAN = 255 * np.array([0.48145466, 0.4578275, 0.40821073])
DEVIATION = 255 * np.array([0.26862954, 0.26130258, 0.27577711])


@pytest.mark.parametrize("case", CASES["pixels"], ids=lambda x: f"{x['kind']} {x['side']}")
def test_pixels_of_photographs_are_theirs(case):
    image = getattr(skimage.data, case["photograph"])()
    facts = {"config": CASES["cases"][case["kind"]]["config"], "processor": {}}
    side = case["side"]
    model = SimpleNamespace(input_shape=(None, side, side, 3), published=facts)
    pixels = owl_pixels(image, model)
    assert pixels.dtype == "float32"
    found = chosen_values((pixels - MEAN) / DEVIATION)
    assert found["shape"] == case["shape"]
    np.testing.assert_allclose(found["values"], case["values"], rtol=0, atol=2e-6)


def test_boxes_of_owlv2_are_shares_of_the_padded_square():
    image = np.zeros((20, 30, 3), "uint8")
    facts = {kind: {"config": CASES["cases"][kind]["config"]} for kind in ("owlvit", "owlv2")}
    assert displayed_size(image, facts["owlvit"]) == (20, 30)
    assert displayed_size(image, facts["owlv2"]) == (30, 30)
