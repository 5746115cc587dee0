"""How the other side of `scripts/parity` is asked: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable


def answer_requests(verbs: dict[str, Callable[[dict], dict]], versions: dict[str, str]) -> None:
    """Answers requests until standard input ends; whatever else is printed goes aside.

    Args:
        verbs: What can be asked for. `make` builds a model of random weights, saves it with
            images and its outputs; `check` loads a file into a new model, strictly, and saves
            its outputs.
        versions: What the first line tells of the libraries used.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = verbs[case["verb"]](case)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
