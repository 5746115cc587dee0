"""Writes what this package makes of every case of the sweep, and the counts in docs/parity.md.

The second half of `scripts/sweep`; `scripts/peers/sweep_theirs.py` writes the cases.
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
import tempfile

import keras

from tests.sweep import read_record
from tests.weights.test_sweep import AGREES, OUTCOMES, outcome

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "parity.md"
START, END = "<!-- sweep -->", "<!-- end of the sweep -->"
KINDS = (
    ("names of timm", lambda title: re.fullmatch(r"timm \S+", title)),
    ("options of timm, one by one", lambda title: title.startswith("timm ")),
    ("classes of transformers", lambda title: re.fullmatch(r"transformers \S+", title)),
    ("options of transformers, one by one", lambda title: True),
)


def main() -> None:
    outcomes: dict[str, str] = {}
    for title, case in sorted(read_record().items()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[title] = outcome(case, pathlib.Path(folder))
            except Exception as error:
                outcomes[title] = f"failed: {error!r:.200}"
        keras.backend.clear_session()
        print(f"{title}: {outcomes[title]}", flush=True)
    OUTCOMES.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")
    text = PAGE.read_text()
    if START in text:
        text = text[: text.index(START)].rstrip() + text[text.index(END) + len(END) :]
    PAGE.write_text(text.rstrip() + "\n\n" + page(outcomes))


def page(outcomes: dict[str, str]) -> str:
    """The counts, and what is refused, as Markdown."""
    rows: dict[str, collections.Counter[str]] = {name: collections.Counter() for name, _ in KINDS}
    refused: dict[str, list[str]] = collections.defaultdict(list)
    for title, text in outcomes.items():
        kind = next(name for name, belongs in KINDS if belongs(title))
        rows[kind][text if text == AGREES else text.split()[0].rstrip(":")] += 1
        if text.startswith("refused: "):
            refused[kind].append(title)
    lines = [
        START,
        "## Every name, class and option",
        "",
        "Written by `scripts/sweep`. Two blocks with the heads, the activation and the options of",
        "each name, loaded by their folder with the `config.json` of their project, and compared",
        "with its outputs in float64: they agree within 2e-5 of the largest, within 5e-5 behind",
        "a ResNet stem, whose float32 is 2e-5 from float64 in timm itself.",
        "`tests/golden/sweep_outcomes.json` has the reason of every refusal.",
        "",
        "| | agree | refused with the feature's name | other numbers |",
        "|---|---|---|---|",
    ]
    for kind, counts in rows.items():
        other = sum(counts.values()) - counts[AGREES] - counts["refused"]
        lines.append(f"| {kind} | {counts[AGREES]} | {counts['refused']} | {other} |")
    return "\n".join([*lines, END]) + "\n"


if __name__ == "__main__":
    main()
