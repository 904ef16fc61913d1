"""The code and commands of the pages on methods, train steps, metrics and several ranks."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine import contrib, engine
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import world_size
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.step import TrainStep
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import TrainingError
from sslengine.launch.cli import main
from sslengine.monitor.history import read
from sslengine.monitor.store import current
from sslengine.registry import TRAIN_STEPS, register_train_step
from tests import warm
from tests.engine.runs import Watch, make_task, train
from tests.integration.command import ROOT, write_config
from tests.ranks import RankPool, free_port
from tests.registries import as_before
from tests.tail import slow_but

DOC = Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md"
SMALL = [
    "config.DATA.TRAIN.DATA_LIMIT=256", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=32",
    "config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=3",
    "config.CHECKPOINT.CHECKPOINT_FREQUENCY=1",
]  # fmt: skip
# As the page has it; `sslengine` is `python -m sslengine`.
COMMAND = [sys.executable, "-m", "sslengine", "config=whiten", *SMALL]
JUDGE = [
    "+config/benchmark/frozen=shapes",
    "config.DATA.TEST.DATA_LIMIT=100",
    "config.EVALUATE.PROTOCOLS=[]",
]


def block(text: str, before: str, language: str) -> str:
    """The first block of code behind the words `before`."""
    match = re.search(rf"{re.escape(before)}.*?```{language}\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return match.group(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = DOC.read_text()
    (tmp_path / "configs").mkdir()
    (tmp_path / "whiten.py").write_text(block(text, "`whiten.py`", "python"))
    (tmp_path / "configs" / "whiten.yaml").write_text(block(text, "`configs/whiten.yaml`", "yaml"))
    return tmp_path


def _run(folder: Path, *more: str) -> str:
    done = warm.run([*COMMAND, *more], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_one_file_one_yaml_a_run_a_resume_a_knn_figure(folder: Path) -> None:
    first = subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    newest = folder / "runs" / "whiten" / "checkpoints" / "checkpoint.torch"
    for _ in range(1200):
        if newest.exists() or first.poll() is not None:
            break
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=60)
    assert newest.exists(), told
    assert first.returncode != 0, "it was done before it could be stopped"

    told = _run(folder)
    assert "resum" in told
    text = (folder / "runs/whiten/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert steps[-1]["iteration"] == 24
    assert {"loss.agreement", "loss.whiteness", "largest_feature"} <= steps[-1].keys()
    assert {"projection_rank", "projection_std"} <= lines[-1].keys()

    assert "kNN" in _run(folder, *JUDGE)
    scores = json.loads((folder / "runs/whiten/evaluation.json").read_text())["scores"]
    assert {each["features"] for each in scores} >= {"trained", "untrained"}


def test_a_typo_in_its_options_is_an_error(folder: Path) -> None:
    done = warm.run([*COMMAND, "config.LOSS.whiten_loss.wieght=2"], cwd=folder)
    assert done.returncode == 2
    told = "config.LOSS.whiten_loss.wieght: unknown key. Did you mean 'weight'?"
    assert told in done.stderr


def test_a_method_that_owns_its_network(folder: Path) -> None:
    (folder / "contrast.py").write_text(block(DOC.read_text(), "`contrast.py`", "python"))
    text = block(DOC.read_text(), "`configs/contrast.yaml`", "yaml")
    (folder / "configs" / "contrast.yaml").write_text(text)
    words = [*COMMAND[:3], "config=contrast", *SMALL[:3], "config.OPTIMIZER.num_iterations=2"]
    done = warm.run([*words, "config.LOSS.dim=16"], cwd=folder)
    assert done.returncode == 0, done.stderr
    state = torch.load(folder / "runs/contrast/checkpoints/checkpoint.torch", weights_only=True)
    learner = state["classy_state_dict"]
    assert learner["loss"]["head.3.weight"].shape[0] == 16
    assert not [name for name in learner["loss"] if name.startswith("trunk")]
    done = warm.run([*words, "config.LOSS.temprature=1"], cwd=folder)
    assert done.returncode == 2
    assert "config.LOSS.SimCLR.temprature" in done.stderr


def test_more_than_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file: predictor, teacher and queue all move."""
    (tmp_path / "taught.py").write_text(block(DOC.read_text(), "`taught.py`", "python"))
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"LOSS": {"name": "taught:Taught", "Taught": {"dim": 8}}}
    before = make_task(tmp_path, [], **changes).loss.state_dict()
    after = train(tmp_path, [], **changes).loss.state_dict()
    still = [name for name in after if torch.equal(before[name], after[name])]
    assert not [name for name in still if name.startswith(("predictor", "queue", "teacher"))]


# ---- The examples of docs/train_steps.md: two steps of each, on one rank and on two.


TRAIN_STEPS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "train_steps.md"
EXAMPLES = re.findall(
    r"^\| `(\w+)`.*\| `(config=[^`]+)` \|$", TRAIN_STEPS_PAGE.read_text(), re.MULTILINE
)
SMALL_RUN = (
    "config.DATA.TRAIN.DATA_LIMIT=8", "config.OPTIMIZER.num_epochs=1", "config.LOG_FREQUENCY=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
)  # fmt: skip


def _codes() -> dict[str, str]:
    """The document's Python, by what it registers."""
    blocks = re.findall(r"```python\n(.*?)```", TRAIN_STEPS_PAGE.read_text(), re.DOTALL)
    return {re.findall(r'@register_\w+\("(\w+)"', code)[0]: code for code in blocks}


def _train(example: str, folder: Path) -> tuple[str, list[float], list[Tensor]]:
    ranks = world_size()
    if "my_model" in example:
        sys.modules["my_model"] = ModuleType("my_model")
        for code in map(_codes().get, ("two_losses", "one_loss")):
            exec(compile(code, str(TRAIN_STEPS_PAGE), "exec"), vars(sys.modules["my_model"]))  # type: ignore[arg-type]
    more = [
        *SMALL_RUN, f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
        f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}", f"config.CHECKPOINT.DIR='{folder}'",
    ]  # fmt: skip
    if "pirl" in example:
        more.append("config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=4")
    run = resolve([*example.split(), *more])
    watch = Watch()
    task = SelfSupervisionTask(
        run.config, folder, torch.device("cpu"), hooks=[watch], services=Services()
    )
    task.prepare()
    loop.run(task)
    return run.config.TRAINER.TRAIN_STEP_NAME, watch.losses, list(task.base_model.parameters())


def test_every_shipped_step_has_an_example() -> None:
    named = {name for name, _ in EXAMPLES} | set(
        re.findall(r"alias `(\w+)`", TRAIN_STEPS_PAGE.read_text())
    )
    shipped = {
        name
        for each in (engine, contrib)
        for name in re.findall(r"\w+_train_step", Path(each.__file__).read_text())
    }
    assert named == shipped


@pytest.mark.parametrize(("name", "example"), slow_but(EXAMPLES[:3], EXAMPLES))
def test_two_steps_on_one_rank_and_on_two(
    tmp_path: Path, two_ranks: RankPool, name: str, example: str
) -> None:
    torch.manual_seed(0)
    used, alone, _ = _train(example, tmp_path / "alone")
    assert used == name
    assert len(alone) == 2
    assert all(map(math.isfinite, alone))
    (_, losses, weights), (_, others, same) = two_ranks.run(_train, example, tmp_path / "two")
    assert losses == others
    assert all(map(math.isfinite, losses))
    assert all(torch.equal(*pair) for pair in zip(weights, same, strict=True))
    if name == "gradcache_train_step":  # its example has no batch norm: the same run
        assert losses == pytest.approx(alone, rel=1e-4)


def test_the_step_of_the_document_trains(tmp_path: Path) -> None:
    """Its option decides on whose loss it trains."""
    exec(compile(_codes()["symmetric_train_step"], str(TRAIN_STEPS_PAGE), "exec"), {})
    both = _symmetric(tmp_path / "half")
    one, other = (_symmetric(tmp_path / str(share), MIRRORED=share) for share in (0.0, 1.0))
    assert len(both) == 4
    assert both[0] == pytest.approx((one[0] + other[0]) / 2, rel=1e-6)
    assert one[0] != other[0]


def _symmetric(folder: Path, **options: float) -> list[float]:
    watch: Any = Watch()
    step = {"TRAIN_STEP_NAME": "symmetric_train_step", "symmetric_train_step": options}
    loop.run(make_task(folder, [watch], TRAINER=step, OPTIMIZER__num_epochs=1))
    assert all(map(math.isfinite, watch.losses))
    losses: list[float] = watch.losses
    return losses


def _without(stage: str) -> Any:
    """Return a train step that leaves a stage out."""
    return type("PartOfAStep", (TrainStep,), {stage: lambda *_: None})


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("record", "TRAIN_STEP_NAME: part_of_a_step recorded no loss: call TrainStep.record"),
        ("backward", "the first optimizer step finds no gradient: .*TrainStep.backward"),
        ("update", "TRAIN_STEP_NAME: part_of_a_step made no optimizer step: call TrainStep.update"),
    ],
)
def test_a_step_that_does_not_train_is_an_error(
    tmp_path: Path, left_out: str, message: str, accumulate: int
) -> None:
    trainer = {"TRAIN_STEP_NAME": "part_of_a_step"}
    with as_before(TRAIN_STEPS):
        register_train_step("part_of_a_step")(_without(left_out))
        task = make_task(tmp_path, [], TRAINER=trainer, OPTIMIZER__accumulate=accumulate)
    with pytest.raises(TrainingError, match=message):
        loop.run(task)
    assert task.iteration < accumulate


# ---- docs/metrics.md followed to the letter, with a smaller config.


METRICS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", METRICS_PAGE.read_text(), re.DOTALL)


def _arguments() -> list[str]:
    """Of the command, as a shell would give them."""
    match = re.search(
        r"    sslengine config=quickstart/simclr (.*?)\n\n", METRICS_PAGE.read_text(), re.DOTALL
    )
    assert match is not None
    return match.group(1).replace("\\\n", " ").replace('"', "").split()


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, reading = _blocks()
    write_config(tmp_path)
    (tmp_path / "my_metrics.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["config=tiny", *_arguments()]) == 0
    run = tmp_path / "runs" / "tiny"
    names: dict[str, object] = {}
    exec(reading.replace("quickstart/simclr", "tiny"), names)
    steps, epochs, by_name = names["steps"], names["epochs"], names["by_name"]
    assert steps == read(run)
    assert [step["iteration"] for step in steps] == [1, 2, 4, 5, 6, 8]
    assert all(step["embedding/norm"] > 0 for step in steps)
    assert by_name["loss"] == [step["loss"] for step in steps]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]
    # Put in the steps after 0 and 4, and written with the first record after that.
    images = sorted(path.name for path in (run / "images" / "first image").iterdir())
    assert images == ["1.png", "5.png"]
    best = min(by_name["loss"])
    assert (run / "lowest.txt").read_text().startswith(f"{best} at step ")
    header = (run / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith("kind,split,iteration,epoch,time,loss,lr,")
    # The module of the page, outside of a run.
    gate = sys.modules["my_metrics"].Gate()
    assert gate(torch.ones(2)).tolist() == [0.5, 0.5]
    assert not current().active


def test_the_defaults_that_the_page_tells() -> None:
    from sslengine.hooks.options import DEFAULT_WRITERS
    from sslengine.registry import WRITERS

    text = METRICS_PAGE.read_text()
    assert f"`[{', '.join(DEFAULT_WRITERS)}]` by default" in text
    table = text.partition("## Writers")[2].partition("All are on rank 0")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == {name for name in WRITERS.names() if "_" not in name}


# ---- The commands of docs/distributed.md, as they stand there, as far as one machine goes. What
# is shortened is what trains: each run makes two steps. Both nodes of torchrun are this one.


PATIENCE = 300  # seconds
DISTRIBUTED_PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
COMMANDS = [
    block.replace("\\\n", " ").strip()
    for block in re.findall(r"```bash\n(.*?)```", DISTRIBUTED_PAGE, re.DOTALL)
]
SHORT = [
    "config.OPTIMIZER.num_iterations=2", "config.DATA.TRAIN.DATA_LIMIT=64",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.LOG_FREQUENCY=1",
]  # fmt: skip
LAUNCHED = {
    "one process": 0, "2 ranks on this node": 1, "2 ranks, started by torchrun": 2,
    "4 ranks, started by torchrun": 3,
}  # fmt: skip


def _start(line: str, folder: Path, place: str) -> subprocess.Popen[str]:
    words = shlex.split(line)
    python = {
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    }
    words = [*python[words[0]], *words[1:], *SHORT, f"config.CHECKPOINT.DIR={folder}"]
    words = [word.replace("node1:29500", place) for word in words]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.Popen(
        words, cwd=ROOT, env=outside, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
# Quick ones: test_one_node.py, tests/launch/test_cli.py and, below torchrun, tests/python/test_passes.py.
@pytest.mark.parametrize(("says", "number"), list(LAUNCHED.items()))
def test_the_command_trains(says: str, number: int, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    nodes = 2 if "--nnodes=2" in COMMANDS[number] else 1
    started = [_start(COMMANDS[number], tmp_path, place) for _ in range(nodes)]
    try:
        printed = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), printed
    assert f"launch: {says}" in "".join(printed)
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert metrics.count('"kind": "step"') == 2


def test_all_commands_that_train_are_tried() -> None:
    training = [number for number, text in enumerate(COMMANDS) if "run_distributed" in text]
    assert training == sorted(LAUNCHED.values())
