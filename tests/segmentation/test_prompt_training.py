"""Fine-tuning of the mask decoder: its loss, batches of prompts, and a few steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.segmentation import read_mask_arrays
from keras_vit.segmentation.prompt_training import build_prompt_trainer, prompt_batches
from keras_vit.segmentation.promptable import load_promptable
from keras_vit.train.prompt_trainer import PromptTrainer, prompt_loss
from tests.segmentation.sam_folder import sam_folder

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (2, 3, 8, 6))
SCORES = RNG.uniform(0, 1, (2, 3))
MASKS = RNG.uniform(size=(2, 8, 6)) > 0.6


def reference(logits, scores, masks):
    """The loss in float64, as the paper writes it."""
    losses = []
    for own, expected, mask in zip(logits, scores, masks, strict=True):
        options, errors = [], []
        for x, score in zip(own, expected, strict=True):
            p = 1 / (1 + np.exp(-x))
            true = np.where(mask, p, 1 - p)
            alpha = np.where(mask, 0.25, 0.75)
            focal = np.mean(-alpha * (1 - true) ** 2 * np.log(true))
            dice = 1 - (2 * p[mask].sum() + 1) / (p.sum() + mask.sum() + 1)
            options.append(20 * focal + dice)
            inside = x > 0
            errors.append((score - (inside & mask).sum() / (inside | mask).sum()) ** 2)
        losses.append(min(options) + np.mean(errors))
    return np.array(losses)


def test_the_loss_is_that_of_the_paper():
    found = keras.ops.convert_to_numpy(prompt_loss(*as_float32()))
    np.testing.assert_allclose(found, reference(LOGITS, SCORES, MASKS), rtol=1e-6)


def test_an_empty_mask_has_a_loss():
    low = np.full((1, 1, 4, 4), -9, "float32")
    found = prompt_loss(low, np.zeros((1, 1), "float32"), np.zeros((1, 4, 4), "uint8"))
    assert 0 <= float(found[0]) < 1e-2


def test_gradients_are_differences_of_the_reference():
    logits, scores, masks = map(tf.convert_to_tensor, as_float32())
    with tf.GradientTape() as tape:
        tape.watch([logits, scores])
        total = tf.reduce_sum(prompt_loss(logits, scores, masks))
    found = tape.gradient(total, [logits, scores])
    for which, (values, gradient) in enumerate(zip((LOGITS, SCORES), found, strict=True)):
        expected = np.zeros(values.shape)
        for place in np.ndindex(values.shape):
            sides = []
            for step in (1e-5, -1e-5):
                inputs = [LOGITS.copy(), SCORES.copy()]
                inputs[which][place] += step
                sides.append(reference(*inputs, MASKS).sum())
            expected[place] = (sides[0] - sides[1]) / 2e-5
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


def as_float32():
    return LOGITS.astype("float32"), SCORES.astype("float32"), MASKS.astype("uint8")


@pytest.fixture(scope="module")
def squares():
    """Images of a bright square each, on a dark ground: classes 0 and 1."""
    rng = np.random.default_rng(1)
    images, labels = [], np.zeros((6, 96, 128), "int32")
    for own in labels:
        top, left = rng.integers(0, 48, 2)
        own[top : top + 40, left : left + 50] = 1
        noise = rng.integers(0, 60, (*own.shape, 3))
        images.append(own[..., None] * 190 + noise)
    return read_mask_arrays(np.stack(images).astype("uint8"), labels, ["ground", "square"])


@pytest.fixture
def segmenter(tmp_path):
    return load_promptable(sam_folder(tmp_path))


def test_batches_are_prompts_and_masks_of_the_logits_size(squares, segmenter):
    batches = list(prompt_batches(segmenter, squares, classes=[1], batch_size=4, seed=None))
    assert [len(y) for _, y in batches] == [4, 2]
    x, y = batches[0]
    image, labels = next(iter(squares.pairs()))
    embedded = segmenter.embed([np.asarray(image)])
    np.testing.assert_array_equal(x["image_embeddings"][0], embedded.embeddings[0])
    rows, columns = (np.flatnonzero((labels == 1).any(axis))[[0, -1]] for axis in (1, 0))
    np.testing.assert_array_equal(x["points"][0], np.stack([columns, rows], -1))  # of 128 pixels
    np.testing.assert_array_equal(x["labels"][0], [2, 3])
    np.testing.assert_array_equal(y[0, :24], labels[2::4, 2::4] == 1)  # as Pillow's NEAREST
    assert y.shape == (4, 32, 32) and not np.any(y[:, 24:])
    points, _ = next(iter(prompt_batches(segmenter, squares, [1], "point", 1, seed=None)))
    left, top = points["points"][0, 0].numpy().astype(int)
    assert labels[top, left] == 1 and points["labels"][0].numpy().tolist() == [1, -1]


@pytest.mark.parametrize(
    "prompt, num_masks", [("box", 1), pytest.param("point", 3, marks=pytest.mark.slow)]
)
def test_the_decoder_learns_masks_and_is_saved(prompt, num_masks, squares, segmenter, tmp_path):
    before = {x.path: np.array(x) for x in segmenter.decoder.weights}
    encoder = [np.array(x) for x in segmenter.encoder.weights]
    trainer = build_prompt_trainer(segmenter, num_masks)
    trainer.compile(keras.optimizers.AdamW(2e-3), jit_compile=False)
    batches = prompt_batches(segmenter, squares, [1], prompt, 6, cache=tmp_path / "embeddings")
    losses = trainer.fit(batches, epochs=25, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.7 * losses[0], losses
    changed = {path for x in segmenter.decoder.weights
               if not np.array_equal(before[path := x.path], x)}  # fmt: skip
    assert any("upscale" in path for path in changed)
    assert not any(path.startswith("prompt_") for path in changed)
    for own, x in zip(encoder, segmenter.encoder.weights, strict=True):
        np.testing.assert_array_equal(own, x)
    (tmp_path / "trained").mkdir()
    segmenter.save_pretrained(tmp_path / "trained")
    image, _ = next(iter(squares.pairs()))
    box = [[40, 20, 80, 60]]
    expected = segmenter.predict([image], boxes=box, num_masks=num_masks)
    found = load_promptable(tmp_path / "trained").predict([image], boxes=box, num_masks=num_masks)
    np.testing.assert_allclose(found["masks"], expected["masks"], atol=1e-5)
    trainer.save(tmp_path / "trainer.keras")
    assert isinstance(keras.saving.load_model(tmp_path / "trainer.keras"), PromptTrainer)
