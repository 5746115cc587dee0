"""Plots: their content, and inputs that are rejected."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from keras_vit.analysis.plots import (
    as_rgb,
    component_colors,
    overlay_attention,
    plot_attention,
    plot_attention_distance,
    plot_components,
    plot_maps,
)

pytest.importorskip("matplotlib")


def test_overlay_darkens_where_there_is_no_attention():
    image = np.full((160, 80, 3), 255, "uint8")
    attention = np.zeros((20, 10))
    attention[6, 4] = 0.3
    picture = overlay_attention(image, attention)
    assert picture.shape == (160, 80, 3) and picture.dtype == "float32"
    light = picture[:, :, 0] / picture[:, :, 0].sum()
    centre = [(np.indices(light.shape)[axis] * light).sum() for axis in (0, 1)]
    assert centre == pytest.approx([51.5, 35.5], abs=1)  # of rows 48 to 55, columns 32 to 39
    assert picture.max() == 1 and picture[100:].max() < 0.02
    np.testing.assert_array_equal(overlay_attention(image, np.ones((20, 10))), as_rgb(image))


def test_overlay_rejects_maps_of_several_heads():
    with pytest.raises(ValueError, match="mean over heads"):
        overlay_attention(np.zeros((8, 8, 3)), np.zeros((4, 2, 2)))


def test_attention_is_drawn_below_every_image():
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3))
    figure = plot_attention(images, np.ones((2, 2, 3)), ["a", "b"])
    *axes, bar = figure.axes
    assert [len(axis.images) for axis in axes] == [1, 1, 1, 1]
    assert [axis.get_title() for axis in axes] == ["a", "b", "", ""]
    assert [[text.get_text() for text in axis.texts] for axis in axes[::2]] == [
        ["image"],
        ["attention"],
    ]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["lowest", "highest"]
    with pytest.raises(ValueError, match="one map for each of the 2 images"):
        plot_attention(images, np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="one title for each"):
        plot_attention(images, np.ones((2, 2, 3)), ["a"])


def test_one_outlier_does_not_hide_the_other_values():
    """Token norms of large models have one."""
    maps = np.random.default_rng(0).uniform(1, 2, (3, 14, 14))
    images = np.zeros((3, 28, 28, 3))
    whole = plot_maps(images, maps, "norm", ["a", "b", "c"])
    assert whole.axes[3].images[0].get_clim() == (maps.min(), maps.max())
    assert whole.axes[0].get_title() == "a" and whole.axes[-1].get_ylabel() == "norm"
    maps[1, 3, 3] = 100
    cut = plot_maps(images, maps, "norm")
    assert all(1.9 < axis.images[0].get_clim()[1] < 2 for axis in cut.axes[3:6])
    assert cut.axes[5].images[0].colorbar.extend == "max"


@pytest.mark.parametrize(("count", "height"), [(1, 32), (1, 20), (8, 32), (6, 16)])
def test_a_long_label_stays_in_the_picture(count, height):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    images, maps = np.zeros((count, height, 32, 3)), np.ones((count, 4, 4))
    label = "relevance of the most likely class, relative to its maximum"
    figure = plot_maps(images, maps, label)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axis in figure.axes:
        for text in (*axis.texts, axis.yaxis.label):
            box = text.get_window_extent(canvas.get_renderer())
            assert not text.get_text() or (min(box.x0, box.y0) >= 0 and box.x1 <= figure.bbox.x1)
            assert not text.get_text() or box.y1 <= figure.bbox.y1
    assert figure.axes[-1].get_ylabel().replace("\n", " ") == label


def test_components_are_colours_that_colour_blind_readers_tell_apart():
    """The first two differ in lightness and from blue to yellow; grey is the middle of both."""
    grey = component_colors(np.full((1, 3), 0.5))[0]
    np.testing.assert_allclose(grey, grey[0], atol=1e-3)
    dark, light, blue, yellow = component_colors(
        np.array([[0, 0.5, 0.5], [1, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 1, 0.5]])
    )
    assert (light - dark).min() > 0.5
    assert blue[2] > blue[:2].max() + 0.1 and yellow[2] < yellow[:2].min() - 0.2
    images = np.zeros((2, 8, 8, 3))
    figure = plot_components(images, np.random.default_rng(0).normal(size=(2, 2, 2, 3)))
    assert [len(axis.images) for axis in figure.axes] == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="Colours need 3 components, of shape"):
        plot_components(images, np.zeros((2, 2, 2, 4)))


def test_images_of_every_range_become_the_same_picture():
    pixels = np.array([[0, 51], [102, 255]], "uint8")
    expected = np.repeat(pixels[:, :, None] / np.float32(255), 3, axis=2)
    for image in (pixels, pixels[:, :, None], pixels.astype("float32"), pixels / 255.0):
        np.testing.assert_allclose(as_rgb(image), expected, atol=1e-6)
    with pytest.raises(ValueError, match="An image must have the shape"):
        as_rgb(np.zeros((2, 2, 4)))


def test_without_matplotlib_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformer\[plot\]"):
        plot_attention_distance([[1]])
