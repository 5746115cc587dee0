"""Lines about long tasks, on standard error."""

from __future__ import annotations

import re
import threading
import time

import pytest

from keras_vit import progress as module
from keras_vit.progress import Progress, align_columns, duration_text


@pytest.fixture
def quickly(monkeypatch):
    """The first line after 10 ms."""
    monkeypatch.delenv("KERAS_VIT_PROGRESS", raising=False)
    monkeypatch.setattr(module, "_FIRST", 0.01)


def wait_for_lines(capsys, least=2):
    """The lines that are printed meanwhile."""
    lines, end = [], time.monotonic() + 20
    while len(lines) < least and time.monotonic() < end:
        time.sleep(0.01)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_lines_say_how_far_a_task_is_and_how_long_the_rest_takes(monkeypatch):
    clock = iter([100.0, 130.0, 160.0, 160.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    progress = Progress("features of photos", 2000, "images", done=500)
    progress.update(1000, "a batch")
    text = "features of photos: 1,000 of 2,000 images, now a batch, 30 seconds so far"
    assert progress.line() == f"{text}, about 60 seconds left"  # 500 in 30 seconds
    progress = Progress("a\x1bb", None, "candidates")
    assert progress.line() == "a\\x1bb: 0 candidates, 0 seconds so far"


def test_a_plan_comes_first_and_the_time_left_after_the_first_unit(capsys, monkeypatch):
    monkeypatch.delenv("KERAS_VIT_PROGRESS", raising=False)
    with Progress("search", 3, "candidates", plan="3 candidates") as progress:
        progress.update(0, "float32")
        progress.update(1, "int8")  # at once: no line
        assert capsys.readouterr().err == "search: 3 candidates\n"
    with Progress("search", 3, "candidates") as progress:
        progress.update(0, "float32")
        progress._start -= 30
        progress.update(1, "int8")
        expected = "search: 1 of 3 candidates, now int8, 30 seconds so far, about 60 seconds left\n"
        assert capsys.readouterr().err == expected
        progress.update(2, "int4")
        assert not capsys.readouterr().err
    with Progress("a", 1, verbose=False, plan="x"):
        assert not capsys.readouterr().err


def test_steps_of_unlike_times_have_no_time_left(capsys):
    progress = Progress("export", 3, "steps")
    for number, name in enumerate(("converting", "writing", "checking")):
        progress.step(name)
        assert progress.line().startswith(f"export: {number} of 3 steps, now {name}, ")
        assert "left" not in progress.line()


def test_a_thread_prints_while_one_step_takes_long(quickly, capsys):
    with Progress("export", 2, "steps") as progress:
        progress.step("converting")
        lines = wait_for_lines(capsys)
    assert len(lines) >= 2
    assert all(re.fullmatch(r"export: 0 of 2 steps, now converting, \d+ seconds so far", line)
               for line in lines)  # fmt: skip
    capsys.readouterr()
    time.sleep(0.05)
    assert not capsys.readouterr().err  # ended
    assert all("_print_lines" not in repr(thread) for thread in threading.enumerate())


def test_a_task_within_another_stands_in_its_lines(quickly, capsys):
    with Progress("search", 5, "candidates") as outer:
        outer.update(1, "int8")
        with Progress("export", 2, "steps") as inner:
            inner.step("writing")
            lines = wait_for_lines(capsys, 1)
        assert "export" not in outer.line()
    expected = "search: 1 of 5 candidates, now int8; export: 0 of 2 steps, now writing, "
    assert lines[0].startswith(expected)
    capsys.readouterr()  # of `outer`, which may have said more
    with Progress("silent", 1, verbose=False), Progress("inner", 1):
        time.sleep(0.05)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("how", ["verbose", "environment"])
def test_lines_can_be_turned_off(how, quickly, capsys, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("KERAS_VIT_PROGRESS", "0")
    with Progress("export", 1, verbose=0 if how == "verbose" else 1):
        time.sleep(0.05)
    assert not capsys.readouterr().err


def test_a_task_that_failed_is_over(quickly):
    with pytest.raises(KeyError), Progress("outer", 1), Progress("inner", 1):
        raise KeyError
    with Progress("next", 1) as progress:
        assert progress.line().startswith("next: 0 of 1 files, ")
        assert progress._thread is not None


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.6, "10 seconds"), (150, "2 minutes"), (9_000, "2.5 hours")]
)
def test_durations_are_read_at_once(seconds, text):
    assert duration_text(seconds) == text


def test_columns_are_aligned_and_cells_are_one_line():
    rows = [("name", "images"), ("a\nb", "1"), ("longest", "")]
    assert align_columns(rows).splitlines() == ["name     images", "a\\nb     1", "longest"]
