"""benchmarks/contrastive.py: captions without the names of classes, jobs and tables."""

from __future__ import annotations

import numpy as np


def test_words_of_attributes_are_known_from_other_classes(load):
    """Held-out classes are described by words that training has seen, or they could not be told."""
    contrastive = load("contrastive")
    for pair in contrastive.PAIRS:
        others = set(contrastive.ATTRIBUTES) - set(pair)
        seen = {
            word for name in others for text in contrastive.captions(name) for word in text.split()
        }
        for name in pair:
            words = [text.split() for text in contrastive.attribute_sentences(name)]
            assert not any(name in text for text in words)
            known = [word in seen for text in words for word in text]
            assert np.mean(known) > 0.6, name
    assert sorted(name for pair in contrastive.PAIRS for name in pair) == sorted(
        contrastive.ATTRIBUTES
    )


def test_captions_fit_the_text_tower(load):
    contrastive = load("contrastive")
    texts = [text for name in contrastive.ATTRIBUTES for text in contrastive.captions(name)]
    words = contrastive.Words(texts)
    ids = words(texts)
    assert ids.shape == (len(texts), contrastive.LENGTH)
    assert ((ids == words.end).sum(axis=1) == 1).all() and ids.max() == words.end
    assert max(len(words.split(text)) for text in texts) < contrastive.LENGTH


def test_tables_have_means_and_ranges(load):
    contrastive = load("contrastive")
    jobs = [*contrastive.jobs("cifar10", [0, 1]), *contrastive.jobs("textile", [0, 1])]
    assert len(jobs) == 2 * (8 + 2)
    found = {"accuracy": 0.5, "by attributes": None, "chance": 0.1, "probe": 0.75}
    pair = {"accuracy of two": 0.25, "accuracy among all": 0.5, "seen classes among all": 1.0}
    rows = [{**job, **found, **pair, "accuracy": 0.5 + 0.1 * job["seed"]} for job in jobs]
    photographs, classes = contrastive.tables(rows)
    assert photographs[2] == (
        "| CIFAR-10, softmax, positives by label | 10.0 | 55.0 (50.0 to 60.0) | - | 75.0 |"
    )
    assert len(photographs) == 2 + 5
    assert classes[-1] == "| all five | 25.0 | 50.0 | 100.0 | 75.0 |" and len(classes) == 2 + 6
