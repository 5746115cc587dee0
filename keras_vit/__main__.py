"""`python -m keras_vit`: the same as the command `keras-vit`."""

from __future__ import annotations

import sys

from keras_vit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
