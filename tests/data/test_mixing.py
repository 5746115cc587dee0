"""Mixup, CutMix and erasing against their definitions in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from keras_vit.data.mixing import erase, mix_images, mix_or_cut

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 255, (4, 12, 16, 3)).astype("float32")
LABELS = np.eye(4, dtype="float32")
SEEDS = [(2, n) for n in range(300)]


def shares(mix, count=4000):
    def share(seed):
        return mix(seed)[1][0, 0]

    seeds = tf.constant([(2, n) for n in range(count)])
    return tf.function(lambda: tf.map_fn(share, seeds, fn_output_signature=tf.float32))().numpy()


def test_mixup_is_the_official_one():
    for seed in SEEDS[:5]:
        images, labels = mix_images(IMAGES, LABELS, 0.5, seed)
        share = labels.numpy()[0, 0]
        partners = [3, 0, 1, 2]  # the image before
        np.testing.assert_allclose(images, share * IMAGES + (1 - share) * IMAGES[partners], 1e-5)
        np.testing.assert_allclose(labels, share * LABELS + (1 - share) * LABELS[partners], 1e-6)


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_shares_have_the_distribution(alpha):
    beta = scipy.stats.beta(alpha, alpha).cdf
    larger = shares(lambda seed: mix_images(IMAGES, LABELS, alpha, seed))
    assert larger.min() >= 0.5
    assert scipy.stats.kstest(larger, lambda x: 2 * beta(x) - 1).statistic < 0.03
    both = shares(lambda seed: mix_or_cut(IMAGES, LABELS, alpha, 0.0, seed))
    assert scipy.stats.kstest(both, beta).statistic < 0.03


def test_small_alphas_make_no_nan():
    assert np.isfinite(shares(lambda seed: mix_images(IMAGES, LABELS, 0.01, seed), 300)).all()


def test_cutmix_pastes_a_rectangle_and_counts_it():
    areas = []
    for seed in SEEDS[:40]:
        images, labels = mix_or_cut(IMAGES, LABELS, 0.0, 1.0, seed)
        changed = (images.numpy() != IMAGES).all(-1)
        rows, columns = changed[0].any(1), changed[0].any(0)
        rectangle = rows[:, None] & columns[None]
        np.testing.assert_array_equal(
            images, np.where(rectangle[None, ..., None], IMAGES[::-1], IMAGES)
        )
        share = 1 - rectangle.mean()
        np.testing.assert_allclose(labels, share * LABELS + (1 - share) * LABELS[::-1], 1e-5)
        areas.append(rectangle.mean())
    assert min(areas) < 0.1 and max(areas) > 0.6


def test_mixup_and_cutmix_take_turns():
    cut = 0
    for seed in SEEDS[:100]:
        images, _ = mix_or_cut(IMAGES, LABELS, 0.8, 1.0, seed)
        taken = np.isin(images.numpy()[0], [IMAGES[0], IMAGES[3]])
        cut += bool(taken.all())
    assert 30 < cut < 70


def test_erasing_is_timms():
    x = np.full((30, 40, 3), 300.0, "float32")
    mean, std = (120.0, 100.0, 80.0), (60.0, 50.0, 40.0)
    erased, noise = 0, []
    for seed in SEEDS:
        y = erase(tf.constant(x), 0.25, mean, std, seed).numpy()
        changed = (y != x).all(-1)
        if not changed.any():
            np.testing.assert_array_equal(y, x)
            continue
        erased += 1
        rows, columns = changed.any(1), changed.any(0)
        np.testing.assert_array_equal(changed, rows[:, None] & columns[None])
        height, width = rows.sum(), columns.sum()
        assert 0.01 < height * width / 1200 < 0.36 and 0.2 < height / width < 5
        noise.append(y[changed])
    assert 0.18 < erased / len(SEEDS) < 0.32
    noise = np.concatenate(noise)
    np.testing.assert_allclose(noise.mean(0), mean, rtol=0.03)
    np.testing.assert_allclose(noise.std(0), std, rtol=0.03)
