from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sslengine.config.sections import read
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.options import SlurmOptions
from sslengine.launch.slurm import submit as module
from sslengine.launch.slurm.submit import copy_code, parameters, submit
from tests.config.recipes import resolved
from tests.launch.slurm.fakes import put_on_path

EACH_KEY = {
    "SLURM__NAME": "my run", "SLURM__COMMENT": "why", "SLURM__PARTITION": "gpu",
    "SLURM__CONSTRAINT": "volta32gb", "SLURM__TIME_HOURS": 2, "SLURM__TIME_MINUTES": 30,
    "SLURM__NUM_CPU_PER_PROC": 3, "SLURM__MEM_GB": 7, "SLURM__SIGNAL_SECONDS": 45,
    "SLURM__ADDITIONAL_PARAMETERS": {"account": "vision", "exclude": "node7"},
    "DISTRIBUTED__NUM_NODES": 2, "DISTRIBUTED__NUM_PROC_PER_NODE": 4,
    "DATA__TRAIN__DATA_LIMIT": 64,
}  # fmt: skip


def _sbatch(tmp_path: Path, **changes: Any) -> str:
    """The batch file that submitit makes of it."""
    slurm = pytest.importorskip("submitit.slurm.slurm")
    run = resolved(**changes)
    told = parameters(run, read(run.config, SlurmOptions), tmp_path / "code")
    return str(slurm._make_sbatch_string(command="run", folder=tmp_path, **told))


def test_every_key_reaches_sbatch(tmp_path: Path) -> None:
    lines = _sbatch(tmp_path, **EACH_KEY, MACHINE__DEVICE="gpu").splitlines()
    for line in (
        "--job-name='my run'", "--comment=why", "--partition=gpu", "--constraint=volta32gb",
        "--time=150", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=12", "--mem=7GB",
        "--gpus-per-node=4", "--signal=USR2@45", "--account=vision", "--exclude=node7",
        "--requeue", f"--chdir={tmp_path}/code",
    ):  # fmt: skip
        assert f"#SBATCH {line}" in lines


def test_what_is_empty_is_left_to_the_cluster(tmp_path: Path) -> None:
    text = _sbatch(tmp_path)
    for word in ("--partition", "--constraint", "--gpus"):
        assert word not in text


def _refused(message: str, *runs: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        submit(runs)
    assert list(Path.cwd().iterdir()) == []


def test_nothing_is_written_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = resolved(SLURM__USE_SLURM=True)
    for name in [name for name in os.environ if name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    _refused("not found on PATH|needs submitit", run)
    _refused("config.SLURM: the runs of a sweep", run, resolved(SLURM__NAME="x"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    _refused("each of the processes .* would submit a job", run)


def test_an_interrupted_wait_leaves_the_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Queued:
        job_id = "7_0"

        class paths:
            stdout, stderr = Path("out"), Path("err")

    def interrupted(jobs: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_check", lambda *_: None)
    monkeypatch.setattr(module, "_send", lambda *_: [Queued(), Queued()])
    monkeypatch.setattr(module, "follow", interrupted)
    run = resolved(SLURM__USE_SLURM=True, SLURM__WAIT=True, SLURM__NAME="a/b c")
    assert submit([run]) == 130
    out = capsys.readouterr().out
    assert "launch: SLURM job 7, an array of 2\n" in out
    assert out.endswith("the job continues; to end it: scancel 7\n")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("a_b_c-")
    assert (folder / "code" / "sslengine" / "__init__.py").exists()
    assert "config:" in (folder / "config_0.yaml").read_text()


def test_what_sbatch_refuses_is_told_once_with_its_keys_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    scripts, home = tmp_path / "bin", tmp_path / "home"
    scripts.mkdir()
    home.mkdir()
    put_on_path(scripts, monkeypatch, sinfo="echo none", sbatch="echo 'too much' >&2; exit 1",
                srun="true")  # fmt: skip
    monkeypatch.chdir(home)
    monkeypatch.setattr(module, "_check", lambda *_: None)
    run = resolved(SLURM__LOG_FOLDER="new/jobs", SLURM__MEM_GB=77)
    with pytest.raises(LaunchError) as error:
        submit([run])
    text = str(error.value) + capsys.readouterr().err
    assert text.count("too much") == 1
    assert "config.SLURM.MEM_GB: 77" in text
    assert list((home / "new" / "jobs").iterdir()) == []


def test_what_the_job_is_made_of_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the resolved config, values of the environment included."""
    pytest.importorskip("submitit")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    put_on_path(scripts, monkeypatch, sinfo="echo none", sbatch="echo Submitted batch job 7",
                srun="true")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_check", lambda *_: None)
    assert submit([resolved(SLURM__LOG_FOLDER=str(tmp_path / "jobs"))] * 2) == 0
    (folder,) = (tmp_path / "jobs").iterdir()
    assert len(list(folder.glob("*.pkl"))) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_copy_is_what_runs_and_knows_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    (mine / "my_package").mkdir(parents=True)
    (mine / "my_package" / "__init__.py").write_text("")
    (mine / "my_package" / "method.py").write_text("VALUE = 1")
    (mine / "my_hook.py").write_text("VALUE = 2")
    monkeypatch.syspath_prepend(mine)
    plugins = ["my_package.method", "my_hook", "torch.nn", "sslengine.data", "json"]
    code = copy_code(tmp_path, plugins)
    assert sorted(path.name for path in code.iterdir()) == ["my_hook.py", "my_package", "sslengine"]
    assert not list(code.rglob("__pycache__"))
    (mine / "my_hook.py").write_text("VALUE = 'edited'")
    ask = (
        "import my_hook, my_package.method, sslengine\n"
        "from pathlib import Path\n"
        "from sslengine.monitor.run_record import code_version\n"
        "print(my_hook.VALUE, my_package.method.VALUE, sslengine.__file__)\n"
        "print(code_version(Path(sslengine.__file__).parent))\n"
    )
    # As a job does: in the copy, which `python -m` looks in first.
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=code, capture_output=True, text=True, check=True
    )
    values, version = done.stdout.splitlines()
    assert values == f"2 1 {code / 'sslengine' / '__init__.py'}"
    assert version == (code / "sslengine" / "COPIED_FROM").read_text().strip()
