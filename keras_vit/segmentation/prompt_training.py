"""Fine-tuning of a decoder of masks on the stored embeddings of a frozen encoder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, check_positive
from keras_vit.data.decode import decode
from keras_vit.segmentation.everything import box_of
from keras_vit.segmentation.masks import MaskSet
from keras_vit.segmentation.promptable import PromptableSegmenter
from keras_vit.train.prompt_trainer import PromptTrainer

_SHUFFLED = 256  # objects, a second time in each epoch after the images


def build_prompt_trainer(segmenter: PromptableSegmenter, num_masks: int = 1) -> PromptTrainer:
    """Builds the model that trains the mask decoder of Segment Anything.

    It shares the weights of `segmenter.decoder`, whose prompt encoder stays as it is; the image
    encoder takes no part.

    Args:
        segmenter: A model of `load_promptable`.
        num_masks: 1 trains the mask for several prompts or a box, 3 those for one point.

    Returns:
        A `PromptTrainer`, which trains with plain `compile(optimizer)` and `fit(batches)`, on
        `prompt_batches`. `segmenter.save_pretrained` writes the result.

    Raises:
        ValueError: If `num_masks` is another number.

    Example:

    >>> trainer = keras_vit.segmentation.build_prompt_trainer(segmenter)  # doctest: +SKIP
    >>> trainer.compile(keras.optimizers.AdamW(1e-4))  # doctest: +SKIP
    >>> batches = keras_vit.segmentation.prompt_batches(segmenter, masks)  # doctest: +SKIP
    >>> trainer.fit(batches, epochs=10, shuffle=False)  # doctest: +SKIP
    """
    check_choice("num_masks", num_masks, (1, 3))
    decoder = segmenter.decoder
    for layer in decoder.layers:
        layer.trainable = not layer.name.startswith("prompt_")
    chosen = slice(0, 1) if num_masks == 1 else slice(1, None)
    outputs = {name: x[:, chosen] for name, x in decoder.output.items()}
    return PromptTrainer(decoder.input, outputs, name=f"{decoder.name}_trainer")


def prompt_batches(
    segmenter: PromptableSegmenter,
    masks: MaskSet,
    classes: Sequence[int] | None = None,
    prompt: str = "box",
    batch_size: int = 8,
    cache: str | os.PathLike[str] = "",
    seed: int | None = 0,
) -> tf.data.Dataset:
    """Makes batches of prompts and masks of images, whose embeddings are computed once.

    What belongs to a class in an image is an object. All masks are read at once. The first epoch
    runs the encoder, whose result has 4 MB for an image of 1024 x 1024 pixels; the others read it.

    Args:
        segmenter: A model of `load_promptable`.
        masks: Images with masks.
        classes: Classes that are objects; `None` takes all.
        prompt: `"box"` around the object; or `"point"`, a random pixel of it, the same in all
            epochs.
        batch_size: Objects in a batch.
        cache: File to keep the embeddings in; `""` keeps them in memory.
        seed: Seed of the order and of the points; `None` keeps the order.

    Returns:
        A dataset of inputs of `segmenter.decoder`, and uint8 masks in the size of its logits, as
        the processor of transformers resizes them.

    Raises:
        ValueError: If an argument is out of its range, or a mask holds values that are no class.
    """
    check_choice("prompt", prompt, ("box", "point"))
    check_positive("batch_size", batch_size)
    inputs = {name: x.shape[1:] for name, x in segmenter.decoder.input.items()}
    size = inputs["previous_mask"]

    chosen = range(masks.num_classes) if classes is None else classes
    present = []  # classes of every image
    for index, (_, labels) in enumerate(masks.pairs()):
        masks.check_labels(index, labels)
        present.append([label for label in chosen if (labels == label).any()])

    def read() -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng(seed)
        for (image, labels), own in zip(masks.pairs(), present, strict=True):
            if not own:
                continue
            pixels = decode(image, 3, masks.max_pixels, exif_orientation=masks.exif_orientation)
            embedded, rows = segmenter.embed([pixels.numpy()]), []
            for mask in (labels == label for label in own):
                if prompt == "box":
                    row = segmenter.prepare_prompts(embedded, boxes=box_of(mask)[None])
                else:
                    place = rng.choice(np.argwhere(mask))[::-1]
                    row = segmenter.prepare_prompts(embedded, points=place[None, None])
                rows.append((row["points"][0], row["labels"][0], _smaller(mask, size)))
            yield embedded.embeddings[0], *map(np.stack, zip(*rows, strict=True))

    def objects(embeddings: Any, points: Any, labels: Any, masks: Any) -> tf.data.Dataset:
        count = tf.shape(points)[0]
        x = {"image_embeddings": tf.repeat(embeddings[None], count, axis=0), "points": points}
        x |= {"labels": labels, "previous_mask": tf.zeros((count, *size))}
        x |= {"has_previous_mask": tf.zeros(count)}
        return tf.data.Dataset.from_tensor_slices((x, masks))

    spec = (
        tf.TensorSpec(inputs["image_embeddings"]), tf.TensorSpec((None, 2, 2)),
        tf.TensorSpec((None, 2), tf.int32), tf.TensorSpec((None, *size), tf.uint8),
    )  # fmt: skip
    images = tf.data.Dataset.from_generator(read, output_signature=spec).cache(os.fspath(cache))
    count = tf.data.experimental.assert_cardinality(sum(map(len, present)))
    found = images.flat_map(objects).apply(count)
    found = found if seed is None else found.shuffle(_SHUFFLED, seed)
    return found.batch(batch_size).prefetch(1)


def _smaller(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A mask in the size of the logits: of the nearest pixels, filled up with 0."""
    scale = min(side / own for side, own in zip(size, mask.shape, strict=True))
    rows, columns = (int(own * scale + 0.5) for own in mask.shape)
    small = tf.image.resize(mask[..., None].astype("uint8"), (rows, columns), "nearest")
    return np.pad(small[..., 0], ((0, size[0] - rows), (0, size[1] - columns)))
