"""Prints the rows of `beside_keras_hub.py` as the table of docs/performance.md.

python benchmarks/print_table.py docs/benchmarks/beside_keras_hub.jsonl
"""

from __future__ import annotations

import json
import sys


def rows(path):
    """The lines of the table: ours in every cell, beside keras-hub's."""
    yield "| model | precision | what | batch | contender | median | fastest | processor |"
    yield "|---|---|---|---|---|---|---|---|"
    with open(path) as file:
        results = [json.loads(line) for line in file]
    fastest = {cell(row): min(row["seconds"]) for row in results if row["contender"] == "keras_hub"}
    for row in results:
        if row["contender"] != "keras_hub":
            yield (
                f"| {row['variant']} | {row['policy']} | {row['mode']} | {row['batch']} "
                f"| {row['contender']} | {row['speed']:.2f} "
                f"| {fastest[cell(row)] / min(row['seconds']):.2f} | {row['processor_speed']:.2f} |"
            )


def cell(row):
    """What two contenders must share to be compared."""
    return row["variant"], row["policy"], row["mode"]


if __name__ == "__main__":
    print("\n".join(rows(sys.argv[1])))
