"""Compares our models with those of other projects, weights going both ways.

Started by `scripts/parity`, which makes the environment of the other side. For every pair: their
random weights in our model, outputs compared; our weights written back, loaded strictly by them,
outputs compared again. Writes `docs/parity.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit.config import ResNetConfig
from keras_vit.create import build, create_model
from keras_vit.image_gpt.model import ImageGPTConfig, build_image_gpt
from keras_vit.image_gpt.weights import load_image_gpt, save_image_gpt
from keras_vit.weights.save import save_weights
from scripts.peers.parity_cases import CASES, Case
from tests.sweep import patches_of

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = "golden"  # what the results of the official code's own outputs are called
OTHERS = "<!-- dense -->"  # where `scripts/parity-dense` begins; `scripts/sweep` follows
LIMIT = 3e-5  # of the largest output, in float32


# The script of the other side, and what of its environment comes first on its path.
SIDES = {
    "flax": ("scripts.peers.parity_flax", ""),
    "timm": ("scripts.peers.parity_theirs", ""),
    "timm (ViT-5 authors)": ("scripts.peers.parity_theirs", ""),
    "transformers": ("scripts.peers.parity_theirs", ""),
    "transformers 4": ("scripts.peers.parity_theirs", "transformers-4"),
}


class Theirs:
    """The other side of some projects, one process for all of their cases."""

    def __init__(self, python: str, module: str, folder: str):
        environment = pathlib.Path(python).parent.parent
        path = [str(ROOT), *([str(environment / folder)] if folder else [])]
        self.process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            text=True,
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.module = module
        self.versions = self._answer()

    def ask(self, verb: str, case: dict) -> dict:
        self.stdin.write(json.dumps({"verb": verb, **case}) + "\n")
        self.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        self.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        line = self.stdout.readline()
        if not line:
            raise RuntimeError(f"The other side ended; run `python -m {self.module}` by hand.")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter of the environment with torch and flax")
    parser.add_argument("--only", default="", help="part of a case's name; others keep their rows")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs" / "parity.json")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in case.title]
    if arguments.list or not cases:
        print("\n".join(case.title for case in cases or CASES))
        sys.exit(None if cases else f"No case is called {arguments.only!r}; these are all.")
    failed = compare_all(cases, arguments.python, arguments.results)
    if failed:
        sys.exit(f"Without a result, or above {LIMIT:.0e}: {'; '.join(failed)}.")


def compare_all(cases: list[Case], python: str, file: pathlib.Path) -> list[str]:
    """Compares pair after pair, writes each result at once, and names those that failed."""
    results = json.loads(file.read_text()) if file.exists() else {}
    failed: list[str] = []
    theirs: Theirs | None = None
    side: tuple[str, str] | None = None
    for case in cases:
        if theirs is None or side != SIDES[case.project]:  # one at a time, for each takes memory
            if theirs is not None:
                theirs.close()
            side = SIDES[case.project]
            theirs = Theirs(python, *side)
            if case.project == "flax":
                results[GOLDEN] = theirs.ask("golden", {"folder": str(ROOT / "tests" / "golden")})
        try:
            with tempfile.TemporaryDirectory() as folder:
                forward, back = compare(case, theirs, pathlib.Path(folder))
        except Exception as error:
            failed.append(case.title)
            print(json.dumps({"case": case.title, "error": str(error)}), flush=True)
            continue
        row = {"model": case.model, "forward": forward, "back": back}
        row.update(date=datetime.date.today().isoformat())
        row.update(versions={**our_versions(), **theirs.versions})
        print(json.dumps({"case": case.title, **row}), flush=True)
        if not max(forward, back) <= LIMIT:
            failed.append(case.title)
        results[case.title] = row
        file.write_text(json.dumps(results, indent=1) + "\n")
        write_page(file.with_suffix(".md"), results)
        keras.backend.clear_session()
    if theirs is not None:
        theirs.close()
    return failed


def compare(case: Case, theirs: Theirs, folder: pathlib.Path) -> tuple[float, float]:
    """Largest relative differences with their weights, and with ours written back."""
    file = folder / ("theirs.npz" if case.project == "flax" else "model.safetensors")
    request: dict = {
        "project": case.project.split()[0],
        "model": case.model,
        "options": case.theirs,
        "output": case.output,
        "patches": (case.image_size // 16) ** 2,
        "images": [1 if case.image_size > 300 else 2, case.image_size, case.image_size, 3],
        "folder": str(folder),
        "file": str(file),
        "images_file": str(folder / "images.npy"),
        "outputs_file": str(folder / "outputs.npy"),
        "palette_file": str(folder / "palette.npy"),
    }
    palette = np.random.default_rng(0).uniform(-1, 1, (case.ours.get("colors", 1), 3))
    np.save(request["palette_file"], palette.astype("float32"))
    theirs.ask("make", request)
    images, outputs = np.load(folder / "images.npy"), np.load(folder / "outputs.npy")
    model = our_model(case, file)
    mine = run(model, images)
    forward = difference(mine, outputs)
    file.unlink()
    if case.variant == "image_gpt":
        save_image_gpt(model, folder)
        theirs.ask("check", request)
        return forward, difference(np.load(folder / "outputs.npy"), mine)
    layout = case.layout or request["project"]
    suffix = "npz" if case.layout else "safetensors"
    if case.layout and case.project != "flax":  # an official file is one of an official model
        model = official_twin(model)
    back = save_weights(model, folder / f"model.{suffix}", layout=layout)
    del model
    theirs.ask("check", {**request, "back": str(back)})
    if case.layout and case.project != "flax":  # ours from the very file that they read
        mine = run(our_model(case, back), images)
    return forward, difference(np.load(folder / "outputs.npy"), mine)


def our_model(case: Case, file: pathlib.Path) -> keras.Model:
    options = dict(case.ours)
    if case.variant == "image_gpt":
        config = ImageGPTConfig(**options, image_size=(case.image_size, case.image_size))
        model = build_image_gpt(config, file.parent / "palette.npy")
        load_image_gpt(model, file)
        return keras.Model(model.get_layer("preprocessing").output, model.output)
    if not case.include_top:
        options["pooling"] = keras_vit.inspect_file(file).options["pooling"]
    return create_model(
        case.variant,
        weights=file,
        include_top=case.include_top,
        input_shape=None if "naflex" in case.variant else (case.image_size, case.image_size, 3),
        include_preprocessing=False,
        **options,
    )


def official_twin(model: keras.Model) -> keras.Model:
    """The same weights, with kernels standardised as in the official code where they are."""
    config = model.config
    if isinstance(config, ResNetConfig):
        config = dataclasses.replace(config, standardization="variance")
    elif config.stem is not None:
        stem = dataclasses.replace(config.stem, standardization="std", norm_epsilon=1e-6)
        config = dataclasses.replace(config, stem=stem)
    twin = build(config)
    twin.set_weights(model.get_weights())
    return twin


def run(model: keras.Model, images: np.ndarray) -> np.ndarray:
    inputs: Any = images
    config: Any = getattr(model, "config", None)  # Image GPT without its palette has none
    if getattr(config, "takes_patches", False):
        side, limit = config.patch_size[0], config.max_num_patches
        inputs = dict(zip(("patches", "grid"), patches_of(images, side, limit), strict=True))
    return keras.ops.convert_to_numpy(model(inputs))


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, relative to the largest value."""
    if ours.shape != theirs.shape:
        raise ValueError(f"Outputs of shape {ours.shape} against {theirs.shape}.")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def write_page(page: pathlib.Path, results: dict[str, dict]) -> None:
    """Writes the page, and keeps what other scripts wrote at its end."""
    _, mark, rest = (page.read_text() if page.exists() else "").partition(OTHERS)
    page.write_text(report(results) + (f"\n{mark}{rest}" if mark else ""))


def report(results: dict[str, dict]) -> str:
    """The page: one row a case that was run, and the cases that never were."""
    lines = [
        "# Numerical parity with the official code, timm and transformers",
        "",
        "Written by `scripts/parity` from `parity.json`; do not edit. Full-size models, random",
        "weights, float32. Numbers are the largest difference of logits or features, relative to",
        'the largest value. "Theirs in ours": their file in our model. "Ours in theirs": our file,',
        "loaded strictly by them.",
        "",
        "- `flax`: files in the official layout, computed in Flax, the library of the official",
        "  code. The official code is not a package, so `scripts/peers/parity_flax.py` assembles",
        f"  the networks from Flax layers. {_golden(results.get(GOLDEN, {}))}",
        "- `timm, ... file`: our official file, read by timm's own reader of such files and by",
        "  us. Both then compute as the PyTorch ports do (other epsilons in hybrids), with the",
        "  tanh GELU. timm's reader ignores unknown names; what it does not find in the file",
        "  stays random and would show as a difference.",
        "- `timm`, `transformers`: files in their own names. `transformers 4` is the last version",
        "  with hybrids; `timm (ViT-5 authors)` is the code of ViT-5, with names as in timm.",
        "",
        "| model | their class or name | theirs in ours | ours in theirs | date |",
        "|---|---|---|---|---|",
    ]
    known = [case.title for case in CASES]
    for title in (title for title in known if title in results):
        row = results[title]
        lines.append(
            f"| {title} | `{row['model']}` | {row['forward']:.1e} | {row['back']:.1e} "
            f"| {row['date']} |"
        )
    missing = [title for title in known if title not in results]
    if missing:
        lines += ["", f"Not run yet: {'; '.join(missing)}."]
    rows = [row for title, row in results.items() if title != GOLDEN]
    used = {", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in rows}
    lines += ["", *(f"Versions: {versions}." for versions in sorted(used))]
    return "\n".join(lines) + "\n"


def _golden(differences: dict[str, float]) -> str:
    if not differences:
        return "It was not compared with the official code's outputs yet."
    return (
        f"Its outputs differ by at most {max(differences.values()):.1e}\n"
        "  from the official code's for the small checkpoints in tests/golden."
    )


def our_versions() -> dict[str, str]:
    backend = keras.backend.backend()
    versions = {"keras_vit": vars(keras_vit)["__version__"], "keras": keras.__version__}
    return {**versions, backend: __import__(backend).__version__}


if __name__ == "__main__":
    main()
