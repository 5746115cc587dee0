"""The name on the package index, in one place, and the other project of a similar name."""

from __future__ import annotations

import configparser
import pathlib
import re
import subprocess

import pytest

from keras_vit.installation import DISTRIBUTION, pip_install, warn_of_other_project

ROOT = pathlib.Path(__file__).parents[1]
# What would install the other project, `keras-vit`, for users and in environments of ours.
OTHER = re.compile(r"(keras[-_]vit\\?\[|pip install [^\n`]*?(?<![/=])\bkeras[-_]vit\b(?![-_/.]))")


def tracked_files():
    command = ["git", "ls-files", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('pip install "keras_vit[plot]"', True),
        ("pip install -U keras-vit", True),
        ("pip install .", False),
        (pip_install("plot"), False),
    ],
)
def test_the_pattern_finds_the_other_name(text, is_found):
    assert bool(OTHER.search(text)) == is_found


def test_nothing_says_to_install_the_other_project():
    found = []
    for path in tracked_files():
        if path.suffix in {".md", ".py", ".cfg", ".toml", ".yml", ".sh", ".txt", ""}:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if OTHER.search(line) and path != pathlib.Path(__file__):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_the_name_is_that_of_the_metadata():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["name"] == DISTRIBUTION
    extras = setup["options.extras_require"]
    for path in (ROOT / "keras_vit").rglob("*.py"):
        for extra in re.findall(r"pip_install\([\"\'](.+?)[\"\']\)", path.read_text()):
            assert extra in extras, f"{path}: there is no extra {extra!r}"


def test_the_other_project_is_named_when_installed(tmp_path, monkeypatch):
    warn_of_other_project()  # it is not installed: warnings are errors here
    metadata = tmp_path / "keras_vit-1.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: keras-vit\nVersion: 1.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="keras-vit 1.0.1 is installed.*pip uninstall keras-vit"):
        warn_of_other_project()
