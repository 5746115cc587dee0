"""Top-k accuracy and recall, against values that were counted by hand."""

import numpy as np
import pytest

from keras_vit.evaluate.ranking import recall_at_k, top_accuracy

SCORES = np.array(
    [
        [0.1, 0.4, 0.3, 0.2],  # order 1 2 3 0
        [0.7, 0.1, 0.1, 0.1],  # order 0 1 2 3: of equal scores the first
        [0.0, 0.2, 0.3, 0.5],  # order 3 2 1 0
        [0.4, 0.3, 0.2, 0.1],  # order 0 1 2 3
    ]
)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([1, 0, 3, 0], [1, 1, 1, 1]), ([3, 2, 2, 1], [0, 0.5, 1, 1]), ([0, 3, 0, 3], [0, 0, 0, 1])],
)
def test_top_accuracy_counts_the_classes_with_the_highest_scores(labels, expected):
    assert [top_accuracy(SCORES, np.array(labels), k) for k in (1, 2, 3, 4)] == expected
    assert top_accuracy(SCORES, np.array(labels)) == np.mean(SCORES.argmax(1) == labels)


# Four images and six texts: the images of the texts are 0 0 1 2 2 3.
SIMILARITY = np.array(
    [
        [0.9, 0.2, 0.8, 0.1, 0.3, 0.0],  # texts 0 2 4 ...: its text 0 is first
        [0.6, 0.7, 0.5, 0.4, 0.1, 0.2],  # texts 1 0 2 ...: its text 2 is third
        [0.1, 0.3, 0.2, 0.0, 0.4, 0.5],  # texts 5 4 1 ...: its text 4 is second
        [0.2, 0.1, 0.4, 0.6, 0.5, 0.3],  # texts 3 4 2 5 ...: its text 5 is fourth
    ]
)
IMAGES = np.array([0, 0, 1, 2, 2, 3])
BOOLS = np.arange(4)[:, None] == IMAGES
# Images of each text by similarity: 0 1 3 2 (its image first), 1 2 0 3 (third), 0 1 3 2 (second),
# 3 1 0 2 (last), 3 2 0 1 (second), 2 3 1 0 (second).


def test_recall_of_several_texts_an_image_is_that_counted_by_hand():
    expected = {1: (1 / 4, 1 / 6), 2: (2 / 4, 4 / 6), 3: (3 / 4, 5 / 6), 4: (1, 1)}
    for k, pair in expected.items():
        assert recall_at_k(SIMILARITY, k, IMAGES) == pytest.approx(pair)
        assert recall_at_k(SIMILARITY, k, BOOLS) == recall_at_k(SIMILARITY, k, IMAGES)
        other = recall_at_k(SIMILARITY.T, k, BOOLS.T)  # the directions change places
        assert other == pytest.approx(pair[::-1])


def test_recall_of_one_text_an_image_is_that_of_the_diagonal():
    found = recall_at_k(SIMILARITY[:, :4], 1)  # texts 0, 1, 1, 3; images 0, 1, 0, 3
    assert found.image_to_text == 3 / 4 and found.text_to_image == 3 / 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_accuracy(SCORES, np.array([0, 1])), "an integer for each of 4 images"),
        (lambda: top_accuracy(SCORES, np.array([0, 1, 2, 4])), "from 0 to 3, the columns"),
        (lambda: top_accuracy(SCORES, np.zeros(4)), r"Received: float64 of shape \(4,\)"),
        (lambda: top_accuracy(SCORES, np.zeros(4, int), 5), "at most 4, the number of classes"),
        (lambda: top_accuracy(SCORES, np.zeros(4, int), 0), "`k` must be a positive integer"),
        (lambda: top_accuracy(SCORES[0], np.zeros(4, int)), r"of shape \(B, K\)"),
        (lambda: top_accuracy(SCORES * np.nan, np.zeros(4, int)), "NaN among them"),
        (lambda: recall_at_k(SIMILARITY), "4 images and 6 texts. Pass the index of its image"),
        (lambda: recall_at_k(SIMILARITY, 1, IMAGES[:5]), r"integers of shape \(6,\), or bools"),
        (lambda: recall_at_k(SIMILARITY, 1, IMAGES + 1), "indices of 4 images. Received: from 1"),
        (lambda: recall_at_k(SIMILARITY, 1, IMAGES % 3), "1 images have no match.*first at 3"),
        (lambda: recall_at_k(SIMILARITY, 1, BOOLS & (SIMILARITY < 0.9)), "1 texts have no.*at 0"),
        (lambda: recall_at_k(SIMILARITY, 5, IMAGES), "`k` must be at most 4"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
