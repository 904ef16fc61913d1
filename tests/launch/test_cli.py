from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from sslengine.launch.cli import INTERRUPTED, main, resolve_all
from tests import warm
from tests.config.recipes import recipe

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "run_distributed_engines.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with one config, `tiny`."""
    (tmp_path / "configs").mkdir()
    tree = {"config": recipe(OPTIMIZER__num_epochs=1)}
    (tmp_path / "configs" / "tiny.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_show_prints_the_config_and_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config=tiny", "--show", "config.SEED_VALUE=5"]) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out)["config"]["SEED_VALUE"] == 5
    assert "# command line" in out
    assert "# configs/tiny.yaml" in out
    assert sorted(path.name for path in project.iterdir()) == ["configs"]
    assert main(["config=tiny", "--show", "--all"]) == 0
    assert "  # Train steps between two log lines; " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["config=tiny", "--all"])
    assert "--all: needs --show" in capsys.readouterr().err


def test_the_command_trains(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config=tiny"]) == 0
    out = capsys.readouterr().out
    assert "done: 4 steps" in out
    assert len(out.splitlines()) < 40
    assert (project / "runs" / "tiny" / "checkpoints" / "checkpoint.torch").exists()
    assert "resumed" not in out
    (line,) = [each for each in out.splitlines() if each.startswith("first step after ")]
    assert re.match(r"first step after \d+\.\d s$", line)
    assert line in (project / "runs" / "tiny" / "log.txt").read_text()


def test_a_sweep_is_checked_whole_and_each_run_has_its_folder(project: Path) -> None:
    runs = resolve_all(
        ["config=tiny", "config.SEED_VALUE=1,2", "config.OPTIMIZER.num_epochs=1,3"], []
    )
    assert [(r.config.SEED_VALUE, r.config.OPTIMIZER.num_epochs) for r in runs] == [
        (1, 1), (1, 3), (2, 1), (2, 3),
    ]  # fmt: skip
    assert [r.config.CHECKPOINT.DIR for r in runs] == [f"runs/tiny/sweep_{i}" for i in range(4)]
    quoted = ["config=tiny", "config.SEED_VALUE=1,2", "config.CHECKPOINT.DIR='it\\'s'"]
    runs = resolve_all(quoted, [])
    assert [r.config.CHECKPOINT.DIR for r in runs] == ["it's/sweep_0", "it's/sweep_1"]
    assert main(["config=tiny", "config.SEED_VALUE=1,x"]) == 2
    assert sorted(path.name for path in project.iterdir()) == ["configs"]


def test_two_processes_by_the_command(project: Path) -> None:
    """The whole way: the tool starts two ranks, which train, log and save as one run."""
    done = warm.run(
        [
            sys.executable, str(TOOL), "config=tiny", "config.DISTRIBUTED.NUM_PROC_PER_NODE=2",
            "config.LOG_FREQUENCY=1",
        ],
        cwd=project,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 ranks on cpu" in done.stdout
    assert done.stdout.count("done: 2 steps") == 1
    run = project / "runs" / "tiny"
    assert (run / "log.txt").exists()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines if line["kind"] == "step"] == [1, 2]


def test_ctrl_c_before_there_is_anything_to_save(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sslengine.launch.local.run_rank", interrupted)
    assert main(["config=tiny"]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
