"""Search in images by texts and by images: exact, in the features that are kept on the disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import keras
import numpy as np

from keras_vit.checks import check_positive, short_repr
from keras_vit.errors import needing_tensorflow, printable
from keras_vit.evaluate.feature_store import digest_model, store_features
from keras_vit.files import cache_dir
from keras_vit.image_text.command_table import DUPLICATES
from keras_vit.image_text.towers import Towers, unit_rows
from keras_vit.layers.float32 import Float32Policy
from keras_vit.models.feature_extraction import features_of, head_input_stage
from keras_vit.runtime.model import Model
from keras_vit.texts.tokenizer import check_texts

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_STAGE = "unit_vector"
_CELLS = 1 << 23  # numbers of a product: 32 MB
_QUERIES = 32  # that are answered at once


class Answer(NamedTuple):
    """An image that was found, and its near-duplicates.

    Args:
        position: Position of the image in the index.
        file: Its file, or its name where there are no files.
        similarity: Cosine similarity to the query, at most 1.
        duplicates: Files of its near-duplicates, the most similar first.
    """

    position: int
    file: str
    similarity: float
    duplicates: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class ImageIndex:
    """Features of images, in which texts and images are searched. Made by `index_images`.

    Args:
        features: Features of length 1, float array of shape `(B, P)`; may be mapped from the disk.
        files: Names of the images.
        towers: Towers of `load_towers`, or a model of images alone; `None` to search vectors only.
        images: The images, for thumbnails; `None` reads `files`.

    Raises:
        ValueError: If there is not a name for each row of the features.
    """

    features: np.ndarray
    files: tuple[str, ...]
    towers: Towers | keras.Model | None = None
    images: ImageSet | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.files):
            raise ValueError(
                "An index has features of shape (B, P) and a name for each image. Received: "
                f"features of shape {self.features.shape} and {len(self.files)} names."
            )

    @functools.cached_property
    def network(self) -> Model:
        """The model from images to vectors of length 1."""
        if self.towers is None:
            raise ValueError("This index has no model. Search vectors, or pass `towers`.")
        return _unit_network(self.towers)

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self, texts: str, top: int = ..., duplicates: float = ...
    ) -> list[Answer]: ...

    @overload
    def search(
        self, texts: Sequence[str], top: int = ..., duplicates: float = ...
    ) -> list[list[Answer]]: ...

    def search(
        self, texts: str | Sequence[str], top: int = 10, duplicates: float = DUPLICATES
    ) -> list[Answer] | list[list[Answer]]:
        """Finds the images that are most similar to a text.

        Args:
            texts: A text, such as "a photo of a red bird"; or several, each with answers of its
                own.
            top: Answers for a text, at most.
            duplicates: Cosine similarity of two images from which they are near-duplicates: only
                the one that is most similar to the text is an answer, with the names of the others.
                A number above 1 groups none.

        Returns:
            Answers, the most similar first; of several texts a list of such lists.

        Raises:
            ValueError: If a text is empty, or the model of the index has no text tower.
        """
        if not isinstance(self.towers, Towers):
            raise ValueError(
                "Texts are searched with a model of images and texts, and this index has "
                f"{'none' if self.towers is None else 'a model of images alone'}. Use "
                "`search_image`, or index the images with towers of `load_towers`."
            )
        several = check_texts(texts)
        if not several or not all(text.strip() for text in several):
            raise ValueError(f"`texts` must be texts that are not empty. Received: {texts!r:.200}.")
        found = self.search_vectors(self.towers.encode_texts(several), top, duplicates)
        return found[0] if isinstance(texts, str) else found

    def search_image(
        self, path: str | os.PathLike[str], top: int = 10, duplicates: float = DUPLICATES
    ) -> list[Answer]:
        """Finds the images that are most similar to an image; itself too, if it is in the index.

        Args:
            path: An image file.
            top: As for `search`.
            duplicates: As for `search`.

        Raises:
            OSError: If the file does not exist or cannot be read.
        """
        with needing_tensorflow("`search_image`"):
            from keras_vit.data.image_files import ImageFiles

        if pathlib.Path(path).is_dir():
            raise ValueError(f"`path` must be an image file. Received: folder {printable(path)}.")
        (pixels,) = ImageFiles([path], self.network)
        vectors = self.network.predict(pixels, verbose=0)
        return self.search_vectors(vectors, top, duplicates)[0]

    def search_vectors(
        self, vectors: np.ndarray, top: int = 10, duplicates: float = DUPLICATES
    ) -> list[list[Answer]]:
        """Finds the images that are most similar to vectors, such as those of `class_vectors`.

        Args:
            vectors: Array of shape `(C, P)`; rows of any length.
            top: As for `search`.
            duplicates: As for `search`.

        Returns:
            A list of answers for each vector.

        Raises:
            ValueError: If shapes do not fit, or `duplicates` is not positive.
        """
        check_positive("top", top)
        if not duplicates > 0:
            raise ValueError(f"`duplicates` must be positive. Received: {duplicates!r}.")
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or vectors.shape[1] != self.features.shape[1]:
            raise ValueError(
                f"Vectors must be of shape (C, {self.features.shape[1]}), as the features of the "
                f"images. Received: shape {vectors.shape}."
            )
        answers: list[list[Answer]] = []
        for start in range(0, len(vectors), _QUERIES):
            several = unit_rows(vectors[start : start + _QUERIES])
            answers += self._answers(several, top, duplicates)
        return answers

    def thumbnail(self, position: int, side: int = 320) -> bytes:
        """Makes a JPEG file of an image, whose longer side has `side` pixels at most.

        Raises:
            OSError: If the file of the image does not exist any more, or cannot be read.
        """
        with needing_tensorflow("A thumbnail"):
            from keras_vit.data.preview import encode_thumbnail, read_one

        source = self.files[position] if self.images is None else self.images
        return encode_thumbnail(read_one(source, position), side)

    def _answers(self, vectors: np.ndarray, top: int, limit: float) -> list[list[Answer]]:
        similarities = np.empty((len(vectors), len(self.features)), "float32")
        for rows in self._blocks(len(vectors)):
            np.matmul(vectors, self.features[rows].T, out=similarities[:, rows])
        chosen = [self._most_similar(row, top, limit) for row in similarities]
        groups = self._duplicates(chosen, limit)
        return [
            [
                Answer(int(i), self.files[i], min(1.0, float(row[i])), tuple(group))
                for i, group in zip(positions, of_query, strict=True)
            ]
            for row, positions, of_query in zip(similarities, chosen, groups, strict=True)
        ]

    def _blocks(self, width: int) -> Iterator[slice]:
        """Blocks of images for products with so many rows."""
        size = max(1, _CELLS // width)
        return (slice(i, i + size) for i in range(0, len(self.features), size))

    def _most_similar(self, similarities: np.ndarray, top: int, limit: float) -> np.ndarray:
        """Positions of the most similar images, of which no two are near-duplicates."""
        count = min(len(similarities), 4 * top)
        while True:
            least = np.partition(similarities, -count)[-count]
            near = np.flatnonzero(similarities >= least)
            near = near[np.argsort(-similarities[near], kind="stable")]
            rows, chosen = self.features[near], list[int]()
            is_left = np.ones(len(near), bool)
            while is_left.any() and len(chosen) < top:
                first = int(np.argmax(is_left))
                chosen.append(first)
                is_left[first] = False
                if limit <= 1:
                    is_left &= rows @ rows[first] < limit
            if len(chosen) == top or count == len(similarities):
                return near[chosen]
            count = min(len(similarities), 8 * count)

    def _duplicates(self, chosen: list[np.ndarray], limit: float) -> list[list[list[str]]]:
        """Files of the near-duplicates of each answer of each query.

        Each counts for the first answer of a query that it is close to.
        """
        groups: list[list[list[str]]] = [[[] for _ in positions] for positions in chosen]
        if limit > 1:
            return groups
        found: list[list[tuple[float, int, int]]] = [[] for _ in chosen]  # cosine, image, answer
        answers = self.features[np.concatenate(chosen)]
        ends = np.cumsum([len(positions) for positions in chosen])[:-1]
        for rows in self._blocks(len(answers)):
            cosines = answers @ self.features[rows].T  # (answers, block)
            for of_query, part in zip(found, np.split(cosines, ends), strict=True):
                is_near = part >= limit
                images = np.flatnonzero(is_near.any(axis=0))
                first = is_near[:, images].argmax(axis=0)
                near, images = part[first, images], images + rows.start
                of_query += zip(near.tolist(), images.tolist(), first.tolist(), strict=True)
        for group, of_query, positions in zip(groups, found, chosen, strict=True):
            known = set(positions.tolist())
            for _, image, answer in sorted(of_query, key=lambda each: -each[0]):
                if image not in known:
                    group[answer].append(self.files[image])
        return groups


def index_images(
    towers: Towers | keras.Model,
    images: str | os.PathLike[str] | ImageSet,
    cache: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 32,
    unreadable: str = "error",
    verbose: bool | int = True,
) -> ImageIndex:
    """Computes the features of images once, keeps them, and returns an index to search in.

    Args:
        towers: Towers of `load_towers`; or a model of images alone, for searching by images.
        images: A folder with images, also in folders inside it; or an `ImageSet`.
        cache: Folder of the features, of one model and one set of images: see
            `keras_vit.evaluate.store_features`. `None` keeps those of a folder in the user's cache
            (`KERAS_VIT_CACHE`), and computes them again in their place if its images changed.
        batch_size: Images per step.
        unreadable: `"error"` or `"skip"`, as for `read_folder`.
        verbose: Whether to print, now and then, how far it is and how long the rest will take.

    Returns:
        An `ImageIndex`.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If there are no images, or some cannot be read: the message lists them. If
            `cache` holds the features of another model or of other images. If `images` is an
            `ImageSet` and there is no `cache`.

    Example:

    >>> towers = keras_vit.image_text.load_towers("clip-vit-base-patch32")  # doctest: +SKIP
    >>> index = keras_vit.image_text.index_images(towers, "photos")  # doctest: +SKIP
    >>> for answer in index.search("a photo of a red bird", top=3):  # doctest: +SKIP
    ...     print(answer.file, answer.similarity)
    """
    with needing_tensorflow("`index_images`"):
        from keras_vit.data.digests import digest_images
        from keras_vit.data.folder import read_files

    network = _unit_network(towers)
    if isinstance(images, str | os.PathLike):
        paths, listed = read_files([images], ("image",), unreadable)
        files = tuple(map(os.fspath, paths))
        # The cache must not depend on the working directory.
        absolute = np.array([os.path.abspath(file) for file in files], object)
        listed = dataclasses.replace(listed, rows=(absolute, listed.rows[1]))
        if cache is None:
            name = f"{digest_model(network)} {os.path.abspath(images)}"
            of_folder = cache_dir() / "search" / _short_digest(name)
            cache = of_folder / _short_digest(digest_images(listed))
            for old in of_folder.glob("*"):
                if old != cache:
                    shutil.rmtree(old, ignore_errors=True)
    elif cache is None:
        raise ValueError("Pass `cache`, a folder for the features of an `ImageSet`.")
    else:
        listed, files = images, images.file_names()
    found = store_features(
        network, listed, cache, _STAGE, batch_size=batch_size, verbose=verbose
    )  # fmt: skip
    return ImageIndex(found.values, files, towers, listed)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _unit_network(towers: Towers | keras.Model) -> Model:
    """The model from images to vectors of length 1; without text tower, of the head's input."""
    if isinstance(towers, Towers):
        image, x = towers.image.inputs[0], towers.image.outputs[0]
    else:
        stage = head_input_stage(towers)
        part = features_of(towers, stage)
        image, x = part.inputs[0], part.output[stage]
    if len(x.shape) != 2:
        raise ValueError(f"Images need one vector each. Received: features of shape {x.shape}.")
    x = keras.layers.UnitNormalization(dtype=Float32Policy(), name=_STAGE)(x)
    return Model(image, x, name="image_vectors")
