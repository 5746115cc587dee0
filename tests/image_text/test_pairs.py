import types

import numpy as np
import pytest

import keras_vit
from keras_vit.data.augmentation import Augmentation
from keras_vit.image_text.pairs import class_captions, make_pairs, pair_batches
from keras_vit.texts.text_tower import TextConfig
from tests.fixtures import images_for, tiny_vit

NAMES = ("red_bird", "cat", "dog")
LABELS = np.array([0, 1, 2, 1, 0, 2, 1])
CONFIG = TextConfig(100, 16, 1, 2, 32, context_length=6)
PLAIN = Augmentation(crop="none", flip=False)


def tokenizer(texts):
    """Ids of the letters' count and of the first letters, with the end of the text."""
    rows = [[len(text), ord(text[0]) % 90, ord(text[-1]) % 90, 99, 0, 0] for text in texts]
    return np.array(rows, "int32")


@pytest.fixture(scope="module")
def towers():
    return types.SimpleNamespace(
        image=tiny_vit(depth=1, classes=None), text_config=CONFIG, tokenizer=tokenizer
    )


@pytest.fixture(scope="module")
def images(towers):
    return keras_vit.read_arrays(images_for(towers.image, 7).round(), LABELS, NAMES)


def test_captions_are_made_of_the_names_of_classes(images):
    pairs = class_captions(images, ["a {}", "{}!"])
    assert pairs.captions == (("a red bird", "red bird!"), ("a cat", "cat!"), ("a dog", "dog!"))
    np.testing.assert_array_equal(pairs.labels, LABELS)
    assert pairs.texts()[3] == ("a cat", "cat!")
    part = pairs.subset(np.array([1, 4]))
    assert part.texts() == [("a cat", "cat!"), ("a red bird", "red bird!")]
    assert part.images.class_names == NAMES
    with pytest.raises(ValueError, match="no sentence for cat"):
        class_captions(images, lambda name: [] if name == "cat" else [name])


def test_evaluation_has_the_first_captions_in_order(images, towers):
    pairs = class_captions(images, ["a {}", "{}!"])
    batches = list(pair_batches(pairs, towers, 4, training=False))
    assert [len(labels) for _, labels in batches] == [4, 3]
    pixels, ids, labels = (
        np.concatenate(each) for each in zip(*((x, i, y) for (x, i), y in batches), strict=True)
    )
    np.testing.assert_array_equal(pixels, images.items)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(ids, tokenizer([each[0] for each in pairs.texts()]))


def test_training_draws_captions_by_the_seed_and_the_epoch(images, towers):
    pairs = class_captions(images, ["a {}", "{}!", "{}?"])

    def epochs(seed):
        batches = pair_batches(pairs, towers, 7, seed, augmentation=PLAIN)
        return [next(iter(batches)) for _ in range(8)]

    first, again, other = epochs(0), epochs(0), epochs(1)
    for ((x, ids), labels), ((x2, ids2), labels2) in zip(first, again, strict=True):
        np.testing.assert_array_equal(ids, ids2)
        np.testing.assert_array_equal(x, x2)
        np.testing.assert_array_equal(labels, labels2)
        every = tokenizer([text for each in pairs.captions for text in each])
        for row, label in zip(np.array(ids), np.array(labels), strict=True):
            assert row.tolist() in every[3 * label : 3 * label + 3].tolist()
    assert len({np.array(ids).tobytes() for (_, ids), _ in first}) == 8
    assert not np.array_equal(first[0][0][1], other[0][0][1])
    drawn = {tuple(row) for (_, ids), _ in first for row in np.array(ids)}
    assert len(drawn) == 9  # each of the captions


def test_features_take_the_place_of_images(images, towers):
    pairs = class_captions(images, ["{}"])
    values = np.arange(14.0).reshape(7, 2).astype("float32")
    (x, _), labels = next(iter(pair_batches(pairs, towers, 7, features=values)))
    order = [int(row[0]) // 2 for row in x]
    assert sorted(order) == list(range(7)) and order != sorted(order)
    np.testing.assert_array_equal(x, values[order])
    np.testing.assert_array_equal(labels, LABELS[order])
    with pytest.raises(ValueError, match=r"shape \(7, P\).*Received: shape \(6, 2\)"):
        pair_batches(pairs, towers, 2, features=values[:6])


def test_pairs_without_classes_have_labels_of_their_own(images, towers):
    texts = [[f"{n} one"] for n in range(7)]
    pairs = make_pairs("own", images.items, images.load, texts, 1 << 20)
    assert pairs.labels.tolist() == list(range(7))
    assert pairs.images.class_names == ("image",)
    train, held_out = pairs.split(2)
    assert (train.num_images, held_out.num_images) == (5, 2)
    (_, ids), labels = next(iter(pair_batches(held_out, towers, 2, training=False)))
    np.testing.assert_array_equal(ids, tokenizer([texts[n][0] for n in np.array(labels)]))


def test_what_makes_no_pairs_is_refused(images, towers):
    pairs = class_captions(images)
    with pytest.raises(ValueError, match="Mixed images have no caption"):
        pair_batches(pairs, towers, 2, augmentation=Augmentation(mixup=0.5))
    with pytest.raises(ValueError, match="7 images, fewer than a batch of 8"):
        pair_batches(pairs, towers, 8)
    wrong = types.SimpleNamespace(**{**vars(towers), "tokenizer": lambda t: tokenizer(t) + 1})
    with pytest.raises(ValueError, match="of another tokenizer"):
        pair_batches(pairs, wrong, 2)
    several = keras_vit.read_arrays(images.items, np.eye(7)[:, :3], task="multi_label")
    with pytest.raises(ValueError, match="task='multi_label'"):
        class_captions(several)
