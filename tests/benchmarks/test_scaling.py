"""Tests benchmarks/scaling.py: the simulation equals what is worked out by hand."""

from __future__ import annotations

import itertools
import json
import sys

import pytest

from keras_vit.evaluate.counting import count_parameters
from keras_vit.models.vit import build_vit
from keras_vit.variants import find_config
from tests.fixtures import tiny_config
from tests.workers import python


@pytest.fixture
def scaling(load):
    return load("scaling")


@pytest.fixture
def simulate(scaling):
    """Simulates one number of replicas; machines of one replica with 1 GB/s by default."""

    def run(step_seconds, replicas, links=None, gradients=1e9, **options):
        links = scaling.Interconnect(**(links or {"network": 1e9, "latency": 1e-3}))
        options |= {"interconnect": links}
        return scaling.simulate_scaling(step_seconds, 16, gradients, [replicas], **options)[0]

    return run


def test_gradients_count_the_trained_variables(scaling):
    config = tiny_config()
    model = build_vit(config)
    assert scaling.gradient_bytes(config) == 4 * model.count_params()
    assert scaling.gradient_bytes(model) == 4 * model.count_params()
    model.get_layer("block_0").trainable = False
    frozen = sum(w.numpy().size for w in model.get_layer("block_0").weights)
    assert scaling.gradient_bytes(model) == 4 * (count_parameters(config) - frozen)
    assert scaling.gradient_bytes(find_config("vit_b16")) == 4 * 86_567_656


def test_bytes_of_a_ring_all_reduce(scaling):
    assert [scaling.sent_bytes(12.0, replicas) for replicas in (1, 2, 3, 4)] == [0, 12, 16, 18]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked for its sockets' bytes")
@pytest.mark.slow
def test_two_workers_send_the_counted_bytes():
    printed = python("benchmarks/exchange.py", "--width", 128, "--steps", 10, timeout=300)
    rows = [json.loads(line) for line in printed.splitlines()]
    assert sorted(row["worker"] for row in rows) == [0, 1]
    for row in rows:
        assert row["counted_bytes_a_step"] == 4 * row["parameters"]
        # Envelopes, metrics and whether there is a next batch: some 12 KB, of 3.2 MB.
        assert 1 < row["sent_bytes_a_step"] / row["counted_bytes_a_step"] < 1.02


def test_one_replica_has_efficiency_1(simulate):
    point = simulate(0.5, 1)
    assert (point.images_per_second, point.efficiency) == (32, 1)
    assert point.limited_by is None


def test_network_and_latency_take_time(simulate):
    two = simulate(0.5, 2)
    assert two.seconds["network"] == 1  # every byte once, at 1e9 a second
    assert two.seconds["latency"] == pytest.approx(2e-3)  # there and back
    assert two.images_per_second == pytest.approx(32 / 1.502)
    assert two.efficiency == pytest.approx(0.5 / 1.502)
    assert two.limited_by == "network"
    many = simulate(0.5, 1024)
    assert many.seconds["network"] == pytest.approx(2 * 1023 / 1024)
    assert many.seconds["latency"] == pytest.approx(2e-3 * 10)  # in a tree, not 1,023 in a row


def test_all_reduce_runs_inside_machines_first(scaling):
    interconnect = scaling.Interconnect(
        replicas_per_machine=8, network=1e9, machine_link=1e11, latency=1e-6
    )
    eight, sixteen = scaling.simulate_scaling(0.5, 16, 1e9, [8, 16], interconnect)
    assert eight.seconds["network"] == 0
    assert eight.seconds["machine"] == sixteen.seconds["machine"] == 2 * 7 / 8 * 1e9 / 1e11
    assert sixteen.seconds["network"] == 1  # between two machines


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_step_waits_for_the_slowest(replicas, simulate):
    measured = [0.5, 0.6, 1.0]
    draws = [max(draw) for draw in itertools.product(measured, repeat=replicas)]
    point = simulate(measured, replicas, {"latency": 1e-12}, gradients=1e-9)
    expected = sum(draws) / len(draws)
    assert point.seconds["compute"] + point.seconds["stragglers"] == pytest.approx(expected)
    assert point.images_per_second == pytest.approx(16 * replicas / expected)
    assert point.limited_by == "stragglers"


def test_all_reduce_overlaps_with_the_backward_pass(simulate):
    half = simulate(1.0, 2, overlap=0.5)
    assert sum(half.seconds.values()) == pytest.approx(1 + 1.002 - 0.5)
    assert simulate(4.0, 2, overlap=0.5).efficiency == 1


def test_storage_limits_all_replicas_together(scaling):
    interconnect = scaling.Interconnect(network=1e12, latency=1e-9, storage=1e8)
    few, many = scaling.simulate_scaling(0.5, 16, 1e6, [2, 1000], interconnect, image_bytes=1e5)
    assert few.seconds["reading"] == 0
    assert many.images_per_second == pytest.approx(1e8 / 1e5)
    assert many.limited_by == "reading"


def test_efficiency_falls_with_replicas_in_the_plot(scaling):
    config = find_config("vit_b16")
    gradients = scaling.gradient_bytes(config)
    points = scaling.simulate_scaling([0.3, 0.31], 8, gradients, [2**i for i in range(11)])
    efficiencies = [point.efficiency for point in points]
    assert efficiencies == sorted(efficiencies, reverse=True) and efficiencies[-1] < 0.5
    figure = scaling.plot_scaling({"vit_b16": points})
    curves = [axis.lines[0].get_ydata() for axis in figure.axes]
    assert list(curves[0]) == [point.images_per_second for point in points]
    assert list(curves[1]) == [100 * efficiency for efficiency in efficiencies]


def test_wrong_values_are_errors(scaling):
    with pytest.raises(ValueError, match="`network` must be above 0"):
        scaling.Interconnect(network=0)
    with pytest.raises(ValueError, match=r"`replicas` must be above 0\. Received: replicas=0"):
        scaling.sent_bytes(1, 0)
    with pytest.raises(ValueError, match="at least one measured step"):
        scaling.simulate_scaling([], 16, 1, [1])
    with pytest.raises(ValueError, match="`step_seconds` must be above 0"):
        scaling.simulate_scaling([0.1, 0.0], 16, 1, [1])
    with pytest.raises(ValueError, match=r"`overlap` is a share in \[0, 1\]\. Received: 2"):
        scaling.simulate_scaling(1.0, 16, 1, [1], overlap=2)


def test_the_script_prints_a_table_and_draws_a_plot(scaling, capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scaling.png"
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--picture", str(picture)])
    scaling.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3 * 5
    assert picture.read_bytes()[:4] == b"\x89PNG"
