"""Images from folders, arrays, TFDS and records, as batches for `fit`."""

from __future__ import annotations

from keras_vit.errors import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
