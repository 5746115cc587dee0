"""A test file stands where the module that it tests stands, under its name."""

from __future__ import annotations

import pathlib
import runpy

ROOT = pathlib.Path(__file__).parents[1]
TESTS = ROOT / "tests"
# tests/benchmarks/test_suite.py tests benchmarks/suite.py, and so on; the rest tests the package.
SCRIPTS = ("benchmarks", "scripts")
# Lines of code that the package may have, as scripts/structure counts them. It goes down with cuts.
MOST_LINES = 43_870
# Files that test no single module, and what they test instead.
ACROSS = {
    "cli/test_targets.py": "`train`, `evaluate` and `predict` on labels and numbers of CSV files",
    "layers/test_every_layer.py": "Keras's own test of layers, on every public layer",
    "models/test_global_settings.py": "every builder under the global settings of Keras",
    "models/test_golden.py": "whole models against the official code and the paper",
    "models/test_hybrids.py": "hybrids and ResNets: built, saved, trained, looked into",
    "models/test_merging.py": "whole models that merge tokens",
    "models/test_newer_families.py": "families through few-shot, LoRA, sizes and replicas",
    "networks/test_docs.py": "the code of docs/dense-published.md",
    "resume/test_processes.py": "processes that are killed and started again",
    "runtime/test_threads.py": "models that train in several threads at once",
    "test_architecture.py": "dependencies between modules",
    "test_docs.py": "documents",
    "test_examples.py": "examples/",
    "test_hostile_files.py": "memory and time of small files of all kinds",
    "test_layout.py": "this layout",
    "test_package.py": "the wheel, and what `import keras_vit` does",
    "test_supply.py": "dependencies, and code from files",
    "test_variants_resnet.py": "the hybrids and ResNets among the variants",
    "scripts/test_peers.py": "scripts/peers",
    "scripts/test_tutorials.py": "docs/tutorials, and their conversion by scripts/site",
    "export/test_beam.py": "export/beam",
    "export/test_any_aspect.py": "images of any aspect ratio in every format",
    "export/test_deployments.py": "the scripts in export/",
    "export/test_errors.py": "messages of every format",
    "export/test_families.py": "families and options in every format",
    "export/test_keras_export.py": "Keras's own export of our models",
    "export/test_model_server.py": "clients of a server in export/",
    "export/test_nested.py": "models inside of models in every format",
    "export/test_output_names.py": "names of outputs in every format",
    "export/test_preprocessing.py": "preprocessing in every format",
    "export/test_resnets.py": "hybrids and ResNets in every format",
    "export/test_web_page.py": "the page in export/web",
    "export/test_shapes.py": "shapes that files refuse, in every format",
    "hub/test_cards.py": "cards of published checkpoints",
    "hub/test_published.py": "from the name of published weights to a file",
    "hub/test_tags.py": "models from tags",
    "weights/test_load_big_vision.py": "files of big_vision",
    "weights/test_load_official.py": "files of the official code",
    "weights/test_load_torch.py": "files of timm and transformers",
    "weights/test_mutations.py": "random damage to files",
    "weights/test_naflex.py": "SigLIP 2 NaFlex from file to features",
    "weights/test_newer.py": "CLIP, DINOv3 and EVA-02 from file to logits",
    "weights/test_sweep.py": "every name of timm and class of transformers",
    "weights/test_sweep_addresses.py": "the same through addresses",
}


def test_test_files_are_named_after_modules():
    wrong = {
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("test_*.py")
        if not module_of(file.relative_to(TESTS)).exists()
    }
    assert sorted(wrong - set(ACROSS)) == [], "name them after the module that they test"
    assert sorted(set(ACROSS) - wrong) == [], "these exceptions are none"


def module_of(file: pathlib.Path) -> pathlib.Path:
    """The module or script that tests/FOLDER/test_NAME.py tests."""
    top = ROOT if file.parts[0] in SCRIPTS else ROOT / "keras_vit"
    module = top / file.parent / file.name.removeprefix("test_")
    command = module.with_name(module.stem.replace("_", "-"))  # scripts/check-published
    return command if command.is_file() else module


def test_the_package_has_no_more_lines_of_code_than_allowed():
    count = runpy.run_path(str(ROOT / "scripts/structure"))["lines_of_code"]
    assert count('"""Words.\n\nMore."""\n\nx = (1,  # one\n     2)\n\n# no code\n') == 2
    found = sum(count(path.read_text()) for path in (ROOT / "keras_vit").rglob("*.py"))
    assert MOST_LINES - 50 <= found <= MOST_LINES, "state fewer lines after a cut, and cut for more"
