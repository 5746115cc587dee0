"""What `scripts/release` refuses, and what it writes from CHANGELOG.md."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parents[2]


def bash(command):
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give the version, such as 0.2.0"),
        ("99.1.0", "keras_vit/__init__.py has another version than 99.1.0: change it there"),
        (f"{keras_vit.__version__} --fast", "unknown option --fast; there is --no-tests"),
    ],
)
def test_what_is_no_release_is_refused_before_anything_runs(arguments, message):
    done = bash(f"scripts/release {arguments}")
    assert done.returncode == 1 and message in done.stderr and done.stdout == ""


def test_notes_are_the_section_of_the_version(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- new\n\n"
        "## 0.2.0 (2027-01-02)\n\n### Added\n\n- a\n\n## 0.2\n\n- old\n"
    )
    source = (ROOT / "scripts/release").read_text()
    function = "section() {" + source.partition("section() {")[2].partition("\n}\n")[0] + "\n}\n"

    def notes(version):
        return bash(f"{function} cd {tmp_path}; section {version}").stdout.strip()

    assert notes("0.2.0") == "### Added\n\n- a"
    assert (notes("0.2"), notes("Unreleased"), notes("0.3.0")) == ("- old", "- new", "")
