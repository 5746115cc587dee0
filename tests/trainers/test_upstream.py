"""Tells when Keras mends what `keras_vit.trainers.distributed` works around.

A test that fails here is good news: take the workaround out for the Keras that has the mending, or
raise the lower bound in setup.cfg and take it out altogether.
"""

from __future__ import annotations

from tests.trainers.upstream import FAULTS
from tests.workers import run, run_workers


def test_keras_still_has_the_faults():
    printed = run("tests.trainers.upstream", "show_all")
    assert [fault for fault in FAULTS if f"{fault.__name__} " not in printed] == []


def test_keras_still_fails_with_several_workers():
    run_workers("tests.trainers.upstream", "show_several_workers", count=2)
