import contextlib
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.contrastive import contrastive_model, image_features, trained_towers
from keras_vit.image_text.pairs import class_captions, pair_batches
from keras_vit.image_text.towers import Towers, load_towers, save_towers
from keras_vit.texts.text_tower import TextConfig, build_text_tower
from tests.fixtures import fill_random, images_for, numpy, tiny_vit
from tests.image_text.towers import LENGTH, VOCABULARY, write_transformers, write_vocabulary
from tests.resume.runs import KillAfter, KilledError
from tests.workers import run

RNG = np.random.default_rng(0)
IDS = RNG.integers(3, VOCABULARY - 2, (6, LENGTH)).astype("int32")
IDS[:, -2] = VOCABULARY - 1
LABELS = np.arange(6)


def own_towers(bias=None):
    """Small towers of two models, without a checkpoint."""
    config = TextConfig(VOCABULARY, 16, 1, 2, 32, LENGTH, 32)
    text = build_text_tower(config)
    fill_random(text)
    return Towers(tiny_vit(depth=1, classes=None), text, config, 2.0, bias)


def compiled(model, rate=1.0, kind="softmax"):
    loss = keras_vit.train.ContrastiveLoss(kind)
    model.compile(keras.optimizers.SGD(rate), loss, jit_compile=False)
    return model


def step(model, x):
    """What one step subtracts from the weights, by their paths."""
    before = [numpy(weight) for weight in model.trainable_weights]
    loss = model.fit(x, LABELS, batch_size=6, verbose=0, shuffle=False).history["loss"][0]
    pairs = zip(before, model.trainable_weights, strict=True)
    return [np.array(loss), *(old - numpy(weight) for old, weight in pairs)]


@pytest.mark.parametrize("siglip", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_checkpoint_is_trained_and_written_again(siglip, tmp_path):
    write_transformers(tmp_path / "first", siglip)
    write_vocabulary(tmp_path / "first")
    towers = load_towers(tmp_path / "first")
    images = images_for(towers.image, 6)
    before = towers.logits(images, IDS)
    model = contrastive_model(towers)
    found = numpy(model([images, IDS]))
    x, y = found[:, :32], found[:, 32:64]
    np.testing.assert_allclose(found[0, -2] * x @ y.T + found[0, -1], before, atol=1e-4)
    compiled(model, 1e-3, "sigmoid" if siglip else "softmax")
    losses = model.fit([images, IDS], LABELS, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    trained = trained_towers(model, towers)
    assert trained.logit_scale != towers.logit_scale
    assert (trained.bias is None) != siglip
    after = trained.logits(images, IDS)
    assert np.abs(after - before).max() > 1e-3
    save_towers(trained, tmp_path / "second")
    np.testing.assert_array_equal(load_towers(tmp_path / "second").logits(images, IDS), after)


def test_a_batch_in_parts_has_the_gradients_of_the_batch():
    whole, parts = own_towers(-3.0), own_towers(-3.0)
    for one, other in ((parts.image, whole.image), (parts.text, whole.text)):
        one.set_weights(other.get_weights())
    x = [images_for(whole.image, 6), IDS]
    expected = step(compiled(contrastive_model(whole), kind="sigmoid"), x)
    model = compiled(contrastive_model(parts, microbatch_size=4), kind="sigmoid")
    found = step(model, x)
    assert len(found) == len(expected) > 20
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert trained_towers(model, parts).image is parts.image


def test_a_locked_image_tower_trains_the_text_on_cached_features(tmp_path):
    towers, again = own_towers(), own_towers()
    again.image.set_weights(towers.image.get_weights())
    again.text.set_weights(towers.text.get_weights())
    images = images_for(towers.image, 6)
    before = towers.image.get_weights()
    locked = compiled(contrastive_model(towers, locked_image=True))
    expected = step(locked, [images, IDS])
    stored = image_features(again, keras_vit.read_arrays(images, LABELS), tmp_path, verbose=False)
    assert stored.values.shape == (6, 32)
    model = compiled(contrastive_model(again, from_features=True))
    for one, other in zip(step(model, [stored.values, IDS]), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for one, other in zip(towers.image.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert trained_towers(model, again).image is again.image
    assert trained_towers(locked, towers).image is towers.image


def test_own_towers_become_a_classifier_and_a_saved_model(tmp_path):
    towers = own_towers()
    towers.tokenizer = lambda texts: IDS[[len(text) % 6 for text in texts]]
    model = contrastive_model(towers)
    model.save(tmp_path / "model.keras")
    trained = trained_towers(keras.saving.load_model(tmp_path / "model.keras"), towers)
    images = images_for(towers.image, 2)
    classifier = zero_shot_classifier(trained, ["a", "bb"], ["{}"], activation=None)
    expected = towers.logits(images, ["a", "bb"])
    np.testing.assert_allclose(classifier.predict(images, verbose=0), expected, atol=1e-5)
    assert model.get_layer("pairs").scale.constraint.high == math.log(100)
    with pytest.raises(ValueError, match="from no checkpoint, whose layout"):
        save_towers(trained, tmp_path / "towers")
    with pytest.raises(ValueError, match=r"no tokenizer\. Set `towers\.tokenizer`"):
        own_towers().encode_texts(["a"])
    with pytest.raises(ValueError, match=r"one of `contrastive_model`\. Received: 'image_text"):
        trained_towers(keras_vit.Model(towers.text.inputs, towers.text.outputs[0],
                                       name="image_text"), towers)  # fmt: skip


@pytest.mark.slow
def test_training_on_pairs_resumes_bit_for_bit(tmp_path):
    """Also with dropout in the parts of a batch, whose random numbers are kept."""

    def kill():
        raise KilledError

    def fit(folder=None, kill_after=None):
        keras.utils.set_random_seed(0)
        towers = own_towers()
        towers.image = tiny_vit(depth=1, classes=None, dropout_rate=0.2)
        towers.tokenizer = lambda texts: IDS[[len(text) % 6 for text in texts]]
        images = keras_vit.read_arrays(images_for(towers.image, 6), LABELS % 2, ["cat", "dogs"])
        batches = pair_batches(class_captions(images, ["{}", "a {}"]), towers, 2, seed=1)
        model = compiled(contrastive_model(towers, microbatch_size=1), 0.1)
        callbacks = [] if folder is None else [keras_vit.ResumeTraining(folder, every_n_steps=2)]
        callbacks += [] if kill_after is None else [KillAfter(kill_after, kill)]
        with contextlib.suppress(KilledError):
            model.fit(batches, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        return model.get_weights()

    expected = fit()
    killed = fit(tmp_path, 5)
    assert any((x != y).any() for x, y in zip(killed, expected, strict=True))
    for one, other in zip(fit(tmp_path), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_two_replicas_train_on_pairs_as_one_device():
    assert "passed" in run("tests.image_text.replicas", "check", TF_ENABLE_ONEDNN_OPTS="0")
