"""Thresholds of classes, against values that were found by hand and by trying all."""

import numpy as np
import pytest

from keras_vit.evaluate.thresholds import calibrate_thresholds


def f1_of(chosen, shown):
    return 2 * (chosen & shown).sum() / max(1, chosen.sum() + shown.sum())


def balanced_of(chosen, shown):
    return (chosen[shown].mean() + (~chosen[~shown]).mean()) / 2


def test_thresholds_are_those_found_by_hand():
    scores = np.array([[0.2, 0.1], [0.4, 0.0], [0.1, 0.1], [0.0, 0.3]])
    # The first class is told apart between 0.1 and 0.2. Of the second, 0.3 alone has F1 2/3, the
    # three images down to 0.1 have 4/5; balanced accuracy is 3/4 for both, and the gap below 0.3
    # is wider.
    labels = np.array([0, 0, 1, 1])
    np.testing.assert_allclose(calibrate_thresholds(scores, labels), [0.15, 0.05])
    found = calibrate_thresholds(scores, labels, "balanced_accuracy")
    np.testing.assert_allclose(found, [0.15, 0.2])


@pytest.mark.parametrize(("metric", "quality"), [("f1", f1_of), ("balanced_accuracy", balanced_of)])
def test_no_other_threshold_is_better(metric, quality):
    rng = np.random.default_rng(0)
    for rounding in (1, 6):  # many equal scores, and none
        shown = rng.random((40, 5)) < 0.4
        scores = np.round(rng.normal(shown, 1.0), rounding).astype("float32")
        found = calibrate_thresholds(scores, shown.astype("float32"), metric)
        for k, threshold in enumerate(found):
            others = [*scores[:, k], scores[:, k].max() + 1]
            best = max(quality(scores[:, k] >= other, shown[:, k]) for other in others)
            assert quality(scores[:, k] >= threshold, shown[:, k]) == pytest.approx(best)


def test_neighbouring_numbers_are_told_apart():
    low = 0.5
    high = np.nextafter(low, 1)
    found = calibrate_thresholds(np.array([[low], [high]]), np.array([[0], [1]]))
    assert low < found[0] <= high


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros(3), np.zeros(3, int), r"scores of shape \(B, K\)"),
        (np.zeros((3, 2)), np.zeros(2, int), r"Received: \(3, 2\) and \(2,\)"),
        (np.zeros((3, 2)), np.array([0, 1, 2]), "must be integers from 0 to 1.*from 0 to 2"),
        (np.zeros((3, 2)), np.array([0, 0.5, 1]), "must be integers from 0 to 1"),
        (np.full((3, 2), np.nan), np.array([0, 1, 1]), "NaN or infinity among them"),
        (np.zeros((3, 3)), np.array([0, 1, 1]), "none or all of 3 images show: 2"),
    ],
)
def test_what_gives_no_threshold_is_refused(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        calibrate_thresholds(scores, labels)
