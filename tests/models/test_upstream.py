"""Tells when Keras mends what `keras_vit.models.training` works around.

A test that fails here is good news: take the workaround out for the Keras that has the mending, or
raise the lower bound in setup.cfg and take it out altogether.
"""

from __future__ import annotations

import pytest

from tests.workers import run, run_workers


@pytest.mark.parametrize(
    "fault",
    [
        "xla_on_replicas",
        "accumulation",
        "clipping",
        "unequal_shares",
        "random_numbers",
        "end_of_data",
        "rematerialization",
    ],
)
def test_keras_still_has_the_fault(fault):
    run("tests.models.upstream", "show", fault)


def test_keras_still_fails_with_several_workers():
    run_workers("tests.models.upstream", "show", "several_workers", count=2)
