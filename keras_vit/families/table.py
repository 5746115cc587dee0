"""The list of families."""

from importlib import import_module

from keras_vit.families.family import Family

# A new family is a file with its `FAMILY`, and a word here.
_NAMES = "google bit cordonnier deit mae dino clip siglip eva beit perception aimv2 tips vit5 timm"
FAMILIES: tuple[Family, ...] = tuple(
    import_module(f"keras_vit.families.{name}").FAMILY for name in _NAMES.split()
)
