"""What may not be imported yet: start-up is imports, and these cost seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.data.loading.loader import WORKER_MODULES

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "run_distributed_engines.py"
HEAVY = {
    "torch", "torchvision", "torchvision.models", "timm", "sklearn", "classy_vision", "fvcore.nn",
    "tensorboard", "torch._dynamo", "sympy", "submitit", "torchvision.ops", "numba",
    "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint",
}  # fmt: skip
# What transforms are of; torchvision's own file, models and operators stay away.
OF_COMPONENTS = {"torch"}

RUN = "config=quickstart/simclr"
PLAIN_MISTAKES = (
    "config=quickstart/nothing",
    "config.LOSSS.name=x",
    "config.LOSS.name=simclr_info_nce_los",
    "config.LOSS.simclr_info_nce_los.temperature=1",
    "config.MODEL.TRUNK.NAME=resnt",
    "config.SLURM.PORT_ID=3",
    "config.OPTIMIZER.num_epochs=many",
    "config.DATA.TRAIN.DATA_LIMIT=0",
    "config.DATA.TRAIN.COLLATE_FUNCTION=simclr",
    "engine_name=trian",
)
MISTAKES_IN_COMPONENTS = (
    "config.LOSS.simclr_info_nce_loss.temperatur=1",
    "config.OPTIMIZER.args.maximise=true",
    "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.size=1",
)


def imported(folder: Path, *lines: str) -> list[set[str]]:
    """What of HEAVY a new process has imported, each time it calls `tell()`, and at its end."""
    head = (
        "import sys, types",  # a deferred module is none yet: lean_torchvision.py
        f"def ran(name): return type(sys.modules.get(name)) is types.ModuleType\n"
        f"def tell(): print('HEAVY', *filter(ran, {HEAVY!r}))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((*head, *lines, "tell()"))],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    said = [line.split() for line in done.stdout.splitlines()]
    return [set(words) for first, *words in filter(None, said) if first == "HEAVY"]


def mistakes(*arguments: str) -> list[str]:
    """Lines of code that make them one after the other."""
    runs = [["run", RUN, each] if "config=" not in each else ["run", each] for each in arguments]
    return [
        "from sslengine.launch.cli import main",
        *(line for run in runs for line in (f"assert main({run[1:]!r}) == 2, {run}", "tell()")),
    ]


def test_the_package_and_its_names_need_none_of_it(tmp_path: Path) -> None:
    lines = ("import sslengine; sslengine.__version__", "tell()", "import sslengine.catalog")
    assert imported(tmp_path, *lines) == [set()] * 2


def test_help_needs_none_of_it(tmp_path: Path) -> None:
    run = (
        "import runpy",
        "sys.argv = ['run', '--help']",
        f"try: runpy.run_path({str(TOOL)!r}, run_name='__main__')",
        "except SystemExit as stop: assert stop.code == 0",
    )
    assert imported(tmp_path, *run) == [set()]


def test_a_plain_mistake_is_told_without_any(tmp_path: Path) -> None:
    found = imported(tmp_path, *mistakes(*PLAIN_MISTAKES))
    assert dict(zip(PLAIN_MISTAKES, found)) == {each: set() for each in PLAIN_MISTAKES}


def test_what_is_not_there_is_told_before_torch_is_imported(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "config.yaml").write_text("config: {}\n")  # a run without a checkpoint
    run, file = str(other), str(other / "config.yaml")
    train = ["train", run, "--method=simclr"]
    wrong = [
        ["embed", "runs/nope", "photos", "--out=x.csv"],
        ["embed", run, "photos", "--out=nope/x.csv"], ["judge", "runs/nope"],
        ["judge", "runs/nope", "--train=a", "--val=b"], ["predict", "runs/nope", "x.png"],
        ["judge", "--features", "a.npy", "--out=nope/x.json"], ["rank", "nope/checkpoints"],
        ["export", "runs/nope", "x"], ["export", run, "x", "--to=nonsense"],
        ["export", run, "x", "--to=onnx"], ["export", run, f"{file}/x"],
        [*train, "--model=resnet9"], [*train, "--model=timm:resnet9"], [*train, f"--out={file}/x"],
    ]  # fmt: skip
    lines = ["sys.modules['onnx'] = None", "from sslengine.command.front import main"]
    for each in wrong:
        lines += [f"assert main({each!r}), {each}", "tell()"]
    found = imported(tmp_path, *lines)
    assert dict(zip(map(str, wrong), found)) == {str(each): set() for each in wrong}


def test_to_check_a_run_is_to_import_components_alone(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        *mistakes(*MISTAKES_IN_COMPONENTS),
        "from sslengine.launch.cli import resolve_all",
        f"resolve_all([{RUN!r}], [])",
        "import sslengine.launch.local",  # which starts ranks and is none
    )
    assert "torch" in found[-1]
    assert found[-1] <= OF_COMPONENTS


def test_a_resnet_and_its_export_need_no_compiler_no_operators_and_no_timm(tmp_path: Path) -> None:
    lines = [f"import sslengine.{name}" for name in ("data.loading.lean_torchvision",
                                                     "models.trunks.resnet", "export.at_end",
                                                     "export.to_torchvision")]  # fmt: skip
    assert imported(tmp_path, *lines) == [{"torch"}]


def test_what_workers_are_forked_from_has_the_data_side_alone(tmp_path: Path) -> None:
    lines = [f"import {module}" for module in WORKER_MODULES]  # in that order
    assert imported(tmp_path, *lines) == [{"torch"}]
