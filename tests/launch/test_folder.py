from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.errors import ConfigError
from sslengine.launch.folder import make_run_folder, run_folder
from tests.config.recipes import resolved


def test_the_runs_folder(tmp_path: Path) -> None:
    assert run_folder(resolved(CHECKPOINT__DIR="a/b").config) == Path("a/b")
    assert run_folder(resolved(CHECKPOINT__DIR="~/x").config) == Path.home() / "x"


def test_a_folder_per_run_id_needs_an_id_that_stays() -> None:
    both = {"CHECKPOINT__DIR": "a", "CHECKPOINT__APPEND_DISTR_RUN_ID": True}
    assert run_folder(resolved(**both, DISTRIBUTED__RUN_ID="h:1").config) == Path("a/h_1")
    with pytest.raises(ConfigError, match="RUN_ID of your own"):
        run_folder(resolved(**both).config)


@pytest.mark.parametrize("name", ["file", "file/inside", "a\0b"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="config.CHECKPOINT.DIR"):
        make_run_folder(resolved(CHECKPOINT__DIR=str(tmp_path / name)).config)
