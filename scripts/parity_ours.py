"""Compares our models with those of timm and transformers, weights going both ways.

Started by `scripts/parity`, which makes the environment of the other side. For every pair: their
random weights in our model, outputs compared; our weights written back, loaded strictly by them,
outputs compared again. Writes `docs/parity.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np

import keras_vit
from keras_vit.create import create_model
from keras_vit.weights.save import save_weights
from scripts.parity_cases import OFFICIAL, TIMM, TRANSFORMERS, Case

ROOT = pathlib.Path(__file__).parent.parent
LIMIT = 3e-5  # of the largest output, in float32


class Theirs:
    """The other side, one process for all cases."""

    def __init__(self, python: str):
        self.process = subprocess.Popen(
            [python, str(ROOT / "scripts" / "parity_theirs.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.versions = self._answer()

    def ask(self, verb: str, case: dict) -> dict:
        self.process.stdin.write(json.dumps({"verb": verb, **case}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("The other side ended; run scripts/parity_theirs.py by hand.")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter of the environment with torch")
    parser.add_argument("--only", default="", help="part of a case's name; others keep their rows")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs" / "parity.json")
    arguments = parser.parse_args()
    theirs = Theirs(arguments.python)
    versions = {**our_versions(), **theirs.versions}
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    failed = []
    for case in [*TIMM, *TRANSFORMERS, *OFFICIAL]:
        title = f"{case.project}, {case.name}"
        if arguments.only not in title:
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                forward, back = compare(case, theirs, pathlib.Path(folder))
        except Exception as error:
            failed.append(title)
            print(json.dumps({"case": title, "error": str(error)}), flush=True)
            continue
        row = {"model": case.model, "forward": forward, "back": back}
        row.update(date=datetime.date.today().isoformat(), versions=versions)
        print(json.dumps({"case": title, **row}), flush=True)
        if max(forward, back) > LIMIT:
            failed.append(title)
        results[title] = row
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
        arguments.results.with_suffix(".md").write_text(report(results))
        keras.backend.clear_session()
    if failed:
        sys.exit(f"Without a result, or above {LIMIT:.0e}: {'; '.join(failed)}.")


def compare(case: Case, theirs: Theirs, folder: pathlib.Path) -> tuple[float | None, float]:
    """Largest relative differences with their weights, and with ours written back."""
    request = {
        "project": case.project,
        "model": case.model,
        "config": case.config,
        "options": case.theirs,
        "arguments": case.arguments,
        "output": case.output,
        "patches": (case.image_size // 16) ** 2,
        "images": [1 if case.image_size > 300 else 2, case.image_size, case.image_size, 3],
        "folder": str(folder),
        "file": str(folder / "model.safetensors"),
        "images_file": str(folder / "images.npy"),
        "outputs_file": str(folder / "outputs.npy"),
    }
    theirs.ask("make", request)
    images, outputs = np.load(folder / "images.npy"), np.load(folder / "outputs.npy")
    model = our_model(case, folder / "model.safetensors")
    mine = run(model, images)
    forward = difference(mine, outputs)
    name = "back.npz" if case.read_official else "model.safetensors"
    (folder / "model.safetensors").unlink()
    save_weights(model, folder / name, layout=case.read_official or case.project)
    theirs.ask("check", {**request, "back": str(folder / name)})
    return forward, difference(np.load(folder / "outputs.npy"), mine)


def our_model(case: Case, file: pathlib.Path) -> keras.Model:
    options = dict(case.ours)
    if not case.include_top:
        info = keras_vit.inspect_file(file)
        options["pooling"] = info.options["pooling"]
    return create_model(
        case.variant,
        weights=file,
        include_top=case.include_top,
        input_shape=(case.image_size, case.image_size, 3),
        include_preprocessing=False,
        **options,
    )


def run(model: keras.Model, images: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(images))


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, relative to the largest value."""
    if ours.shape != theirs.shape:
        raise ValueError(f"Outputs of shape {ours.shape} against {theirs.shape}.")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def report(results: dict[str, dict]) -> str:
    """The page: one row a case that was run, and the cases that never were."""
    lines = [
        "# Parity with timm and transformers",
        "",
        "Written by `scripts/parity` from `parity.json`; do not edit. Full-size models, random",
        "weights, float32. Numbers are the largest difference of logits or features, relative to",
        'the largest value. "Theirs in ours": their file in our model. "Ours in theirs": our file,',
        "loaded strictly by them (official files by timm's own reader, with the tanh GELU).",
        "",
        "| model | their class or name | theirs in ours | ours in theirs | date |",
        "|---|---|---|---|---|",
    ]
    for title, row in results.items():
        lines.append(
            f"| {title} | `{row['model']}` | {row['forward']:.1e} | {row['back']:.1e} "
            f"| {row['date']} |"
        )
    cases = [f"{case.project}, {case.name}" for case in (*TIMM, *TRANSFORMERS, *OFFICIAL)]
    missing = [title for title in cases if title not in results]
    if missing:
        lines += ["", f"Not run yet: {'; '.join(missing)}."]
    used = {", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in results.values()}
    lines += ["", *(f"Versions: {versions}." for versions in sorted(used))]
    return "\n".join(lines) + "\n"


def our_versions() -> dict[str, str]:
    backend = keras.backend.backend()
    versions = {"keras_vit": keras_vit.__version__, "keras": keras.__version__}
    return {**versions, backend: __import__(backend).__version__}


if __name__ == "__main__":
    main()
