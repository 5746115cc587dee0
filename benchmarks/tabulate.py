"""Prints the rows of `beside_keras_hub.py` as the table of docs/performance.md.

python benchmarks/tabulate.py docs/benchmarks/beside_keras_hub.jsonl
"""

from __future__ import annotations

import json
import sys


def rows(path):
    """The lines of the table: ours in every cell, beside keras-hub's."""
    yield "| model | precision | what | batch | contender | wall time | processor time |"
    yield "|---|---|---|---|---|---|---|"
    with open(path) as file:
        for row in map(json.loads, file):
            if row["contender"] != "keras_hub":
                yield (
                    f"| {row['variant']} | {row['policy']} | {row['mode']} | {row['batch']} "
                    f"| {row['contender']} | {row['speed']:.2f} | {row['processor_speed']:.2f} |"
                )


if __name__ == "__main__":
    print("\n".join(rows(sys.argv[1])))
