"""What all tests run under."""

from __future__ import annotations

import os

# oneDNN's kernels, which most processors in use have on. It also keeps the automatic choice of
# XLA off, whose compilation would take most of the tests' time on the others.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
