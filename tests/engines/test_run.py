from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.engines.runs import make_run


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("train", ["config.yaml", "environment.json", "signature.json"]),
        ("evaluate", ["config_evaluate.yaml", "environment_evaluate.json", "signature.json"]),
    ],
)
def test_a_run_describes_itself_and_leaves_anothers_description_alone(
    tmp_path: Path, engine: str, names: list[str]
) -> None:
    make_run(tmp_path / "run", engine).describe()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    shown = yaml.safe_load((tmp_path / "run" / names[0]).read_text())
    assert shown["engine_name"] == engine
    assert json.loads((tmp_path / "run" / names[1]).read_text())["sslengine"]


def test_what_holds_values_of_the_environment_is_the_owners_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "run").describe()
    assert (tmp_path / "run" / "environment.json").stat().st_mode & 0o777 == 0o600
