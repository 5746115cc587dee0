"""When workers ask one another, and what they conclude."""

from __future__ import annotations

from keras_vit.distribution import workers as agreement


class Workers:
    """Two workers; the other answers with what it is given."""

    count, index = 2, 0

    def __init__(self, other):
        self.other, self.asked = other, 0

    def gather(self, number):
        self.asked += 1
        return [number, self.other]


def test_all_stop_when_one_has_to():
    assert agreement.StopQuestion(Workers(agreement._STOP + 3)).ask(1, False)
    assert agreement.StopQuestion(Workers(3)).ask(1, True)
    assert not agreement.StopQuestion(Workers(3)).ask(1, False)


def test_they_ask_again_when_the_slowest_wishes(monkeypatch):
    clock = iter(range(0, 100, 10))  # 10 seconds between two questions
    monkeypatch.setattr(agreement.time, "monotonic", lambda: float(next(clock)))
    workers = Workers(other=30)
    question = agreement.StopQuestion(workers)
    assert not question.ask(500, False)  # 50 steps a second here, 30 there
    assert not any(question.ask(step, True) for step in range(501, 530))
    assert workers.asked == 1
    assert question.ask(530, True)
    assert not question.ask(531, False, now=True)
    assert workers.asked == 3


def test_one_worker_alone_asks_nobody():
    question = agreement.StopQuestion(agreement.Workers(None))
    assert [question.ask(step, step == 2) for step in range(3)] == [False, False, True]
