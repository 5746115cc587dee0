"""Learning from images without labels."""

from __future__ import annotations

from keras_vit.errors import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
