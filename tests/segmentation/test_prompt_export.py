"""Files of encoder and decoder: their masks are those of the model, for any prompts."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.export.formats import FORMATS
from keras_vit.segmentation import export_promptable, load_promptable
from tests.segmentation.sam_folder import read_photographs, sam_folder

pytestmark = pytest.mark.xdist_group("saved_model")


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return load_promptable(sam_folder(tmp_path_factory.mktemp("sam")))


@pytest.mark.parametrize(
    "format, num_points",
    [
        ("onnx", None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("saved_model", None), ("litert", None), ("litert", 8), ("openvino", 8))
        ),
    ],
)
def test_files_give_the_masks_of_the_model(format, num_points, segmenter, tmp_path):
    reports = export_promptable(segmenter, tmp_path, format, num_points=num_points, verbose=False)
    assert [report.max_difference < 1e-5 for report in reports] == [True, True]
    names = [{}, {}] if format != "saved_model" else [{"name": "pixels"}, {"name": "decode"}]
    encode, decode = (
        FORMATS[format].load(report.path, **name)
        for report, name in zip(reports, names, strict=True)
    )
    image = read_photographs()["coffee"][:300]
    embedded = segmenter.embed([image])
    points = np.random.default_rng(1).uniform(0, 299, (1, 5, 2))
    inputs = segmenter.prepare_prompts(embedded, points=points, labels=[[1, 0, 1, 1, 0]])
    if num_points is not None:  # padding as in transformers
        missing = num_points - 6
        inputs["points"] = np.pad(inputs["points"], ((0, 0), (0, missing), (0, 0)))
        inputs["labels"] = np.pad(inputs["labels"], ((0, 0), (0, missing)), constant_values=-10)
    found = decode(inputs)
    expected = segmenter.decoder.predict_on_batch(inputs)
    for name in ("masks", "scores"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    pixels = np.zeros((1, *segmenter.image_size, 3), "float32")
    (embeddings,) = (x for x in encode(pixels).values() if x.ndim == 4)
    np.testing.assert_allclose(embeddings, segmenter.encoder(pixels), atol=1e-5)


def test_wrong_arguments_are_named(segmenter, tmp_path):
    with pytest.raises(ValueError, match="must be one of"):
        export_promptable(segmenter, tmp_path, "tflite")
    with pytest.raises(ValueError, match=r"does not convert\. Received: None"):
        export_promptable(segmenter, tmp_path, "openvino")
    with pytest.raises(ValueError, match=r"must be 4 or more; .* Received: 3 for onnx"):
        export_promptable(segmenter, tmp_path, num_points=3, verbose=False)
