"""The closed form of few-shot evaluation, against the official scores and plain NumPy."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluate.few_shot import few_shot_scores, pick_shots
from keras_vit.evaluate.probes import cross_validate, fit_head
from tests.fixtures import images_for, tiny_vit

# The candidates of the official evaluation of 2020.
REGULARIZATIONS = tuple(2.0**power for power in range(-10, 20))
# Scores of the official formula in float64 for the features and labels of `official`.
OFFICIAL_SCORES = {
    2.0**-10: [
        [1.751038, -1.607151, -1.143887],
        [-1.684736, 3.456680, -2.771944],
        [-0.278204, -0.676538, -0.045259],
        [-2.232392, 3.770718, -2.538326],
    ],
    1.0: [
        [1.142323, -1.226037, -0.916275],
        [-1.449447, 2.994087, -2.544629],
        [-0.354437, -0.590261, -0.055291],
        [-1.798167, 3.180292, -2.382114],
    ],
    1024.0: [
        [-0.327438, -0.330273, -0.331039],
        [-0.340462, -0.298688, -0.349600],
        [-0.333428, -0.329028, -0.326295],
        [-0.338469, -0.300858, -0.349424],
    ],
}


def official():
    i, j = np.mgrid[0:9, 0:4]
    features = (3 * i**2 + 5 * j**2 + 11 * i * j + 7 * i) % 17 / 8 - 1
    i, j = np.mgrid[0:4, 0:4]
    test = (5 * i**2 + 3 * j**2 + 7 * i * j + 2 * i) % 19 / 9 - 1
    return features, np.arange(9) % 3, test


def test_scores_are_the_official_ones():
    scores = few_shot_scores(*official(), 3, list(OFFICIAL_SCORES))
    np.testing.assert_allclose(scores, list(OFFICIAL_SCORES.values()), rtol=0, atol=6e-7)


@pytest.mark.parametrize("count", [6, 40])
def test_both_gram_matrices_solve_the_ridge(count):
    rng = np.random.default_rng(count)
    features, test = rng.normal(3, 2, (count, 12)), rng.normal(3, 2, (5, 12))
    labels = rng.integers(0, 4, count)
    mean, stddev = features.mean(0), features.std(0) + 1e-5
    x = np.c_[(features - mean) / stddev, np.full(count, 100.0)]
    y = 2 * np.eye(4)[labels] - 1
    for strength in (0.1, 1024.0):
        weights = np.linalg.solve(x.T @ x + strength * np.eye(13), x.T @ y)
        expected = np.c_[(test - mean) / stddev, np.full(5, 100.0)] @ weights
        scores = few_shot_scores(features, labels, test, 4, [strength])[0]
        np.testing.assert_allclose(scores, expected, rtol=1e-7, atol=1e-9)


def named_classes(seed, shots=4, classes=6, width=24):
    """Features of unit length around directions that the names know roughly."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1, (classes, width))
    labels = np.arange(classes * 50) % classes
    features = centres[labels] + rng.normal(0, 2.5, (len(labels), width)) + 3.0
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    vectors = centres + rng.normal(0, 1.0, centres.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    count = shots * classes
    return features[:count], labels[:count], features[count:], labels[count:], vectors


def test_class_vectors_pull_the_weights_toward_them():
    """The minimum of |x w - y|^2 + lambda |w - w0|^2, w0 the weights of the names' scores."""
    features, labels, test, _, vectors = named_classes(0)
    mean, stddev = features.mean(0), features.std(0) + 1e-5
    x = np.c_[(features - mean) / stddev, np.full(len(features), 100.0)]
    y = 2 * np.eye(6)[labels] - 1
    scores = features @ vectors.T
    a, b = np.polyfit(scores.ravel(), y.ravel(), 1)
    w0 = np.r_[a * stddev[:, None] * vectors.T, (a * mean @ vectors.T + b)[None] / 100]
    for strength in (0.1, 30.0, 1e9):
        w = np.linalg.solve(x.T @ x + strength * np.eye(25), x.T @ y + strength * w0)
        expected = np.c_[(test - mean) / stddev, np.full(len(test), 100.0)] @ w
        found = few_shot_scores(features, labels, test, 6, [strength], vectors)[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found, a * test @ vectors.T + b, rtol=0, atol=1e-3)


def test_names_and_images_together_are_better_than_either():
    right = []
    for seed in range(10):
        features, labels, test, expected, vectors = named_classes(seed)
        arguments = "ridge", features, labels, 6
        by_setting = cross_validate(*arguments, folds=4, verbose=0, class_vectors=vectors)
        setting = max(by_setting, key=by_setting.get)
        head = fit_head(*arguments, setting, vectors)
        fused = keras.ops.convert_to_numpy(head(test.astype("float32")))
        scores = few_shot_scores(features, labels, test, 6, [setting], vectors)[0]
        np.testing.assert_allclose(fused, scores, rtol=0, atol=1e-4)
        alone = few_shot_scores(features, labels, test, 6, REGULARIZATIONS)
        right.append(
            [
                (fused.argmax(1) == expected).mean(),
                ((test @ vectors.T).argmax(1) == expected).mean(),
                (alone.argmax(2) == expected).mean(1).max(),  # with the best strength afterwards
            ]
        )
    fused, names, images = np.mean(right, axis=0)
    assert fused > names + 0.02 and fused > images + 0.02, (fused, names, images)


def test_vectors_that_say_nothing_are_left_out():
    """Names whose scores fall where the class is shown have no weight."""
    features, labels, test, _, vectors = named_classes(1)
    found = few_shot_scores(features, labels, test, 6, [10.0], -vectors)
    targets = few_shot_scores(features, labels, test, 6, [10.0], np.zeros_like(vectors))
    np.testing.assert_allclose(found, targets, rtol=0, atol=1e-10)


def test_class_vectors_that_do_not_fit_are_refused():
    features, labels, test, _, vectors = named_classes(0)
    for wrong in (vectors[:5], vectors[:, :7], vectors * np.nan):
        with pytest.raises(ValueError, match=r"finite, of shape \(classes, D\) = \(6, 24\)"):
            few_shot_scores(features, labels, test, 6, class_vectors=wrong)
    for call in (cross_validate, lambda *args, **kwargs: fit_head(*args, 1.0, **kwargs)):
        with pytest.raises(ValueError, match=r"need method='ridge'\. Received: 'logistic'"):
            call("logistic", features, labels, 6, class_vectors=vectors)


def test_shots_are_the_first_or_drawn():
    labels = np.array([2, 0, 2, 1, 0, 1, 1, 2, 0])
    assert pick_shots(labels, 2).tolist() == [1, 4, 3, 5, 0, 2]
    drawn = pick_shots(labels, 2, seed=3)
    assert labels[drawn].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(drawn)) == 6
    assert drawn.tolist() == pick_shots(labels, 2, seed=3).tolist()
    assert any(drawn.tolist() != pick_shots(labels, 2, seed=seed).tolist() for seed in range(5))
    with pytest.raises(ValueError, match=r"Classes with fewer.*: 1 \(1\), 7 \(2\)"):
        pick_shots(np.array([1, 7, 7, 3, 3, 3]), 3)
    with pytest.raises(ValueError, match="`shots` must be positive"):
        pick_shots(labels, 0)


def separable(count, classes, width, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + rng.normal(0, noise, (count, width))).astype("float32"), labels


def test_accuracy_grows_with_shots_and_is_chance_without_information():
    train, test = separable(400, 8, 16, noise=1.0), separable(200, 8, 16, seed=1, noise=1.0)
    accuracies = keras_vit.evaluate.few_shot_accuracy(*train, *test, shots=(1, 5, 25))
    assert accuracies[1][0] < accuracies[5][0] < accuracies[25][0]
    assert accuracies[25][0] > 0.9
    noise = np.random.default_rng(2).normal(size=test[0].shape)
    assert keras_vit.evaluate.few_shot_accuracy(*train, noise, test[1], shots=(25,))[25][0] < 0.3


def test_names_of_classes_may_have_gaps():
    (x, labels), (test, test_labels) = separable(60, 3, 8), separable(30, 3, 8, seed=1)
    plain = keras_vit.evaluate.few_shot_accuracy(x, labels, test, test_labels, shots=(5,))
    names = np.array([4, 70, 900])
    named = keras_vit.evaluate.few_shot_accuracy(
        x, names[labels], test, names[test_labels], shots=(5,)
    )
    assert plain[5].tolist() == named[5].tolist()
    with pytest.raises(ValueError, match=r"must be in `labels`. Missing: 5"):
        keras_vit.evaluate.few_shot_accuracy(
            x, labels, test, test_labels + 5 * (test_labels == 0), (5,)
        )


def test_a_model_is_evaluated_from_arrays_and_batches():
    model = tiny_vit(pre_logits=16)
    images, labels = images_for(model, 12), np.arange(12) % 3
    test, test_labels = images_for(model, 6, seed=1), np.arange(6) % 3
    by_arrays = keras_vit.evaluate.evaluate_few_shot(
        model, (images, labels), (test, test_labels), (2, 4), REGULARIZATIONS
    )
    batches = [(images[:8], labels[:8]), (images[8:], labels[8:])]
    by_batches = keras_vit.evaluate.evaluate_few_shot(
        model, batches, [(test, test_labels)], (2, 4), REGULARIZATIONS
    )
    sets = (keras_vit.read_arrays(images, labels), keras_vit.read_arrays(test, test_labels))
    by_sets = keras_vit.evaluate.evaluate_few_shot(model, *sets, (2, 4), REGULARIZATIONS)
    features = keras_vit.analysis.image_features(model, images, stage="pre_logits")
    test_features = keras_vit.analysis.image_features(model, test, stage="pre_logits")
    by_hand = keras_vit.evaluate.few_shot_accuracy(
        features, labels, test_features, test_labels, (2, 4), REGULARIZATIONS
    )
    assert features.shape == (12, 16)  # what the head reads
    for count in (2, 4):
        assert by_arrays[count].shape == (30,)
        assert by_arrays[count].tolist() == by_batches[count].tolist() == by_hand[count].tolist()
        assert (
            by_arrays[count].tolist() == by_sets[count].tolist()
        )  # of other classes than the head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, t: (x, y[:-1], t, 3), r"Received: \(9, 4\), \(8,\), \(4, 4\)"),
        (lambda x, y, t: (x, y, t[:, :2], 3), "takes features of shape"),
        (lambda x, y, t: (x, y, t, 2), "`labels` must be integers in 0 to 1"),
        (lambda x, y, t: (x, y * 1.0, t, 3), "must be integers"),
        (lambda x, y, t: (x * np.nan, y, t, 3), "`features` must be finite"),
        (lambda x, y, t: (x, y, t, 3, [0.0]), "`regularizations` must be positive"),
    ],
)
def test_wrong_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        few_shot_scores(*change(*official()))


@pytest.mark.slow
def test_a_thousand_classes_take_seconds():
    features, labels = separable(25_000, 1000, 1024)
    test = features[::50]
    begin = time.process_time()
    scores = few_shot_scores(features, labels, test, 1000)[0]
    assert time.process_time() - begin < 30  # 4 on a quiet machine
    assert (scores.argmax(-1) == labels[::50]).mean() > 0.99
