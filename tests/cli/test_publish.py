"""The command `push`."""

from __future__ import annotations

from keras_vit.cli.main import main
from tests.fixtures import tiny_vit


def test_a_dry_run_writes_the_folder_and_connects_to_nothing(tmp_path, capsys):
    model, folder = tmp_path / "model.keras", tmp_path / "pets"
    tiny_vit(depth=1, gelu="exact").save(model)
    words = ["push", str(model), "hf://me/pets", "--dry-run", str(folder)]
    assert main([*words, "--layout", "timm", "--licence", "MIT"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    card = (folder / "README.md").read_text()
    assert 'license: "mit"' in card and 'library_name: "timm"' in card
    assert main(words) == 2
    assert "is not an empty folder" in capsys.readouterr().err
