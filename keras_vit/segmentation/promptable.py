"""Segment Anything: objects that points, boxes and masks ask for."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.image_files import read_pixels
from keras_vit.data.pillow import resample
from keras_vit.networks.network_file import open_network
from keras_vit.networks.saving import save_network
from keras_vit.pretrained import find_class
from keras_vit.runtime.model import Model, find_preprocessing
from keras_vit.segmentation.sam import INSIDE, LOWER_RIGHT, NO_POINT, OUTSIDE, UPPER_LEFT, load_sam

_LABELS = (INSIDE, OUTSIDE, NO_POINT, -10)  # the last fills up a row, as in transformers


@dataclasses.dataclass(frozen=True)
class EmbeddedImages:
    """Images that the encoder has seen, for several prompts.

    Args:
        embeddings: float32 array of shape `(B, rows, columns, 256)`.
        sizes: Height and width of every image in pixels.
    """

    embeddings: np.ndarray
    sizes: tuple[tuple[int, int], ...]


class PromptableSegmenter:
    """Segment Anything (https://arxiv.org/abs/2304.02643): masks of what prompts point at.

    Args:
        encoder: A model from images `(B, H, W, 3)` to their embeddings, float32 of shape
            `(B, rows, columns, 256)`, channels last. It takes pixels in [0, 255] filled up with
            the mean colour at the bottom and at the right, or with `include_preprocessing=False`
            normalised ones filled up with zeros.
        decoder: A model from a dict of
            `image_embeddings`, float32 of shape `(B, rows, columns, 256)`;
            `points`, float32 of shape `(B, P, 2)`, x and y in pixels of the encoder's image;
            `labels`, int32 of shape `(B, P)`: 1 inside and 0 outside of the object, 2 upper left
            and 3 lower right corner of a box, -1 no point, of which there is one if there are
            points and no box, -10 a token of zeros, with which transformers fills up;
            `previous_mask`, float32 of shape `(B, 4 rows, 4 columns)`, logits; and
            `has_previous_mask`, float32 of shape `(B,)`, 1 or 0;
            to a dict of `masks`, float32 logits of shape `(B, 4, 4 rows, 4 columns)`: one mask for
            several prompts, then three for one, from part to whole; and `scores`, float32 of shape
            `(B, 4)`, the predicted IoU of each.
    """

    def __init__(self, encoder: Model, decoder: Model):
        self.encoder = encoder
        self.decoder = decoder

    @property
    def image_size(self) -> tuple[int, int]:
        """Pixels along (height, width) of the encoder's images."""
        height, width = self.encoder.inputs[0].shape[1:3]
        return height, width

    def embed(self, images: Any) -> EmbeddedImages:
        """Runs the encoder on images, once for all prompts.

        Args:
            images: As for `predict`.

        Returns:
            What `predict` takes in their place.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If an image has another shape; the message names it.
        """
        images = [images] if isinstance(images, str | os.PathLike) else images
        if not len(images):
            raise ValueError(f"`images` must be one or more images. Received: {images!r}.")
        preprocessing, includes = find_preprocessing(self.encoder)
        if not includes or preprocessing is None:
            pixels = np.asarray(images, "float32")
            if pixels.shape[1:] != (*self.image_size, 3):
                raise ValueError(
                    f"Without preprocessing, images have the shape (B, {self.image_size[0]}, "
                    f"{self.image_size[1]}, 3). Received: shape {pixels.shape}."
                )
            sizes = [self.image_size] * len(pixels)
        else:
            read = [read_pixels(image, index)[0] for index, image in enumerate(images)]
            sizes = [(x.shape[0], x.shape[1]) for x in read]
            pixels = np.empty((len(read), *self.image_size, 3), "float32")
            pixels[:] = preprocessing.mean  # becomes 0
            for own, image in zip(pixels, read, strict=True):
                size = self.resized_size(image.shape[:2])
                how = preprocessing.interpolation
                resized = resample(tf.constant(image), size, (0, 0), size, how)
                own[: size[0], : size[1]] = resized
        embeddings = [self.encoder.predict_on_batch(x[None]) for x in pixels]
        return EmbeddedImages(np.concatenate(embeddings), tuple(sizes))

    def resized_size(self, size: Sequence[int]) -> tuple[int, int]:
        """Pixels along (height, width) to which an image is resized, as in transformers."""
        scale = min(wanted / own for wanted, own in zip(self.image_size, size, strict=True))
        return int(size[0] * scale + 0.5), int(size[1] * scale + 0.5)

    def predict(
        self,
        images: Any,
        points: Any = None,
        labels: Any = None,
        boxes: Any = None,
        num_masks: int = 3,
        masks: Any = None,
    ) -> dict[str, np.ndarray]:
        """Predicts masks of the objects that prompts point at, one object a row of prompts.

        Args:
            images: `B` images: pixels of shape `(h, w, 3)` in [0, 255], or paths of image files,
                which are turned as their EXIF says; or the result of `embed`. Without
                preprocessing, a float array `(B, H, W, 3)` as the encoder takes it. All rows of
                prompts can be of one image.
            points: Float array of shape `(B, P, 2)`: x and y in pixels of the image; without
                preprocessing, of the encoder's image, as boxes.
            labels: Integers of shape `(B, P)`: 1 inside and 0 outside of the object; -1 no point,
                -10 a point that fills up a row, as in transformers. `None` is 1 for all.
            boxes: Float array of shape `(B, 4)`: left, top, right and bottom.
            num_masks: 3 masks for prompts that may mean a part or a whole, or 1.
            masks: Logits of masks of the step before, of shape `(B, 4 rows, 4 columns)`.

        Returns:
            A dict of `masks`, float32 logits of shape `(B, num_masks, 4 rows, 4 columns)`, four
            values along each axis for a patch, positive inside; and `scores`, float32 of shape
            `(B, num_masks)`, the predicted IoU of each. `resize_masks` makes masks of images.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If nothing is asked for, an argument has another shape, a prompt is outside
                of its image, there are labels without points or other labels, or `num_masks` is
                another number; the message has the index.
        """
        if num_masks not in (1, 3):
            raise ValueError(f"`num_masks` must be 1 or 3. Received: {num_masks}.")
        embedded = images if isinstance(images, EmbeddedImages) else self.embed(images)
        prompts = {"points": points, "labels": labels, "boxes": boxes, "masks": masks}
        outputs = self.decoder.predict_on_batch(self.prepare_prompts(embedded, **prompts))
        chosen = slice(0, 1) if num_masks == 1 else slice(1, None)
        return {name: x[:, chosen] for name, x in outputs.items()}

    def prepare_prompts(self, embedded: EmbeddedImages, **given: Any) -> dict[str, np.ndarray]:
        """Checks prompts, and makes the inputs of the decoder of them.

        Args:
            embedded: The result of `embed`.
            **given: `points`, `labels`, `boxes` and `masks`, as for `predict`.

        Raises:
            ValueError: As for `predict`.
        """
        rows, columns = (4 * side for side in embedded.embeddings.shape[1:3])
        prompts = _check_shapes(given, len(embedded.sizes), (rows, columns))
        count = len(next(iter(prompts.values())))
        embeddings, sizes = embedded.embeddings, embedded.sizes
        if len(sizes) == 1:
            embeddings, sizes = np.repeat(embeddings, count, axis=0), sizes * count
        corners = prompts.get("boxes", np.zeros((count, 0))).reshape(count, -1, 2)
        places = prompts.get("points", np.zeros((count, 0, 2)))
        kinds = prompts.get("labels", np.full(places.shape[:2], INSIDE))
        _check_inside(places, corners, kinds, sizes)
        ends = np.tile([UPPER_LEFT, LOWER_RIGHT], (count, corners.shape[1] // 2))
        if "points" in prompts and "boxes" not in prompts:
            corners, ends = np.zeros((count, 1, 2)), np.full((count, 1), NO_POINT)
        scales = [np.divide(self.resized_size(size), size)[::-1] for size in sizes]  # x and y
        previous = np.zeros((count, rows, columns), "float32")
        return {
            "image_embeddings": embeddings,
            "points": (np.hstack([places, corners]) * np.array(scales)[:, None]).astype("float32"),
            "labels": np.hstack([kinds, ends]).astype("int32"),
            "previous_mask": prompts.get("masks", previous).astype("float32"),
            "has_previous_mask": np.full(count, "masks" in prompts, "float32"),
        }

    def resize_masks(
        self, masks: np.ndarray, sizes: Sequence[tuple[int, int]], threshold: float = 0.0
    ) -> list[np.ndarray]:
        """Masks in the pixels of images, as `post_process_masks` of transformers.

        Args:
            masks: Logits of `predict`, of shape `(B, M, 4 rows, 4 columns)`.
            sizes: Height and width of the image of each row, or those of one image for all.
            threshold: Logits above are inside.

        Returns:
            For each row a boolean array of shape `(M, height, width)`.
        """
        sizes = [*sizes] * (len(masks) if len(sizes) == 1 else 1)
        return [self.resize_logits(*row) > threshold for row in zip(masks, sizes, strict=True)]

    def resize_logits(self, logits: np.ndarray, size: Sequence[int]) -> np.ndarray:
        """Logits `(M, rows, columns)` of masks in the size of their image, without the padding."""
        height, width = self.resized_size(size)
        x = tf.image.resize(logits.transpose(1, 2, 0), self.image_size)[:height, :width]
        return np.asarray(tf.image.resize(x, size)).transpose(2, 0, 1)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Writes a folder that `load_promptable` and transformers load.

        Args:
            folder: Where to write `model.safetensors`, `config.json` and
                `preprocessor_config.json`.

        Raises:
            ValueError: If the folder has other files of these names, or images are not square.
        """
        height, width = self.image_size
        if height != width:
            raise ValueError(
                f"SamModel of transformers takes square images. Received: a network for {height} x "
                f"{width}. Load it with a square input_shape."
            )
        return save_network(self.encoder, folder, (self.decoder,))


def _check_shapes(
    given: dict[str, Any], images: int, mask_size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """The prompts that are not `None` as arrays, all with as many rows."""
    prompts = {name: np.asarray(each) for name, each in given.items() if each is not None}
    if not prompts.keys() - {"labels"} or ("labels" in prompts and "points" not in prompts):
        raise ValueError(
            "Masks need points, boxes or masks that ask for them, and labels the points that are "
            f"inside or outside. Received: {[*prompts] or None}."
        )
    count = max(images, len(next(iter(prompts.values()))) if images == 1 else 0)
    wanted: dict[str, tuple[Any, ...]] = {
        "points": (count, None, 2), "boxes": (count, 4), "masks": (count, *mask_size),
        "labels": (count, *prompts.get("points", np.zeros(0)).shape[1:2]),
    }  # fmt: skip
    for name, array in prompts.items():
        shape = wanted[name]
        fits = array.ndim == len(shape) and array.dtype.kind in "fiub"
        if not fits or any(a not in (b, None) for a, b in zip(shape, array.shape, strict=True)):
            raise ValueError(
                f"`{name}` of {images} images must be numbers of shape "
                f"{str(shape).replace('None', 'P')}. Received: {array.dtype} of shape "
                f"{array.shape}."
            )
    return prompts


def _check_inside(
    points: np.ndarray, corners: np.ndarray, labels: np.ndarray, sizes: Sequence[tuple[int, int]]
) -> None:
    """Raises a `ValueError` for the first label that is none, or prompt outside of its image."""
    for row, column in np.argwhere(~np.isin(labels, _LABELS)):
        raise ValueError(
            f"Labels are 1 (inside), 0 (outside), -1 (no point) or -10 (padding). Received: "
            f"{labels[row, column]}, of point {column} of row {row}."
        )
    limits = np.array(sizes)[:, None, ::-1]  # width and height
    for what, places, counts in (("Point", points, labels >= 0), ("Corner", corners, True)):
        outside = ~((places >= 0) & (places <= limits)).all(-1) & counts
        for row, column in np.argwhere(outside):
            raise ValueError(
                f"{what} {column} of row {row} is outside of its image. Received: x and y "
                f"{places[row, column].tolist()}, in an image of width and height "
                f"{limits[row, 0].tolist()}. Pass pixels of the image, x first."
            )
    for row in np.flatnonzero((corners[:, :1] > corners[:, 1:]).any((1, 2))):
        raise ValueError(
            f"Boxes are left, top, right and bottom. Received: {corners[row].reshape(-1).tolist()} "
            f"in row {row}."
        )


def load_promptable(
    weights: str | os.PathLike[str],
    input_shape: tuple[int, int, int] | None = None,
    include_preprocessing: bool = True,
) -> PromptableSegmenter:
    """Loads Segment Anything: `SamModel` of transformers, of any size, or SlimSAM.

    Args:
        weights: A folder, or an address such as `hf://facebook/sam-vit-base`.
        input_shape: Height and width in pixels of the encoder's images, and 3; `None` takes the
            checkpoint's, 1024 x 1024. Positions are resized to others.
        include_preprocessing: Whether images are pixels of any size in [0, 255], which `predict`
            resizes, and the encoder normalises. Otherwise they are as the encoder takes them, and
            points and boxes in their pixels.

    Returns:
        The encoder, the decoder, and their `predict`.

    Raises:
        ValueError: If the file is damaged, asks for what is not computed, or holds another class;
            the message says what loads it.
        DownloadError: If it cannot be fetched.

    Example:

    >>> sam = load_promptable("hf://facebook/sam-vit-base")  # doctest: +SKIP
    >>> seen = sam.embed(["photograph.jpg"])  # doctest: +SKIP
    >>> found = sam.predict(seen, points=[[[250, 130]]])  # doctest: +SKIP
    >>> masks = sam.resize_masks(found["masks"], seen.sizes)  # doctest: +SKIP
    """
    with open_network(find_class(weights, ("SamModel",)), os.fspath(weights)) as file:
        encoder, decoder = load_sam(file, input_shape, include_preprocessing)
    return PromptableSegmenter(encoder, decoder)
