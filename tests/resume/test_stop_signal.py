"""Stop requests that workers share."""

from __future__ import annotations

from keras_vit.distribution.cluster import Workers as RealWorkers
from keras_vit.resume import stop_signal
from keras_vit.resume.stop_signal import SharedStop


class Workers:
    """Two workers; the other answers with what it is given."""

    count, index = 2, 0

    def __init__(self, other):
        self.other, self.asked = other, 0

    def gather(self, number):
        self.asked += 1
        return [number, self.other]


def test_all_stop_when_one_must():
    assert SharedStop(Workers(stop_signal._STOP + 3)).ask(1, False)
    assert SharedStop(Workers(3)).ask(1, True)
    assert not SharedStop(Workers(3)).ask(1, False)


def test_the_interval_is_that_of_the_slowest_worker(monkeypatch):
    clock = iter(range(0, 100, 10))  # 10 seconds between two gathers
    monkeypatch.setattr(stop_signal.time, "monotonic", lambda: float(next(clock)))
    workers = Workers(other=30)
    stop = SharedStop(workers)
    assert not stop.ask(500, False)  # 50 steps a second here, 30 there
    assert not any(stop.ask(step, True) for step in range(501, 530))
    assert workers.asked == 1
    assert stop.ask(530, True)
    assert not stop.ask(531, False, now=True)
    assert workers.asked == 3


def test_a_single_worker_gathers_nothing():
    stop = SharedStop(RealWorkers(None))
    assert [stop.ask(step, step == 2) for step in range(3)] == [False, False, True]
