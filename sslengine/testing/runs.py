"""Make small runs of the real task, and record what tests observe of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.checkpoint import files
from sslengine.checkpoint.rng import rng_state
from sslengine.config.compose import Assignment, compose
from sslengine.config.resolve import Resolved, freeze
from sslengine.distributed import process_group
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.ranks import rank
from sslengine.engine import loop
from sslengine.engine.saving import get_state
from sslengine.engine.services import services_of
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import Hook
from sslengine.registry import TASKS
from sslengine.testing.state import attributes, copied, differences, flat, outside_state_dict

CPU = torch.device("cpu")
# The default config file: configs/testing/small.yaml.
FILE = "config=testing/small"
# Overrides that make any run small. Three steps per epoch: the fourth is in the next epoch.
SMALL: dict[str, Any] = {
    "LOG_FREQUENCY": 1,
    "DATA.NUM_DATALOADER_WORKERS": 0,
    "DATA.TRAIN.DATA_LIMIT": 12,
    "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 4,
    "OPTIMIZER.num_iterations": 4,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 1,
    "MACHINE.DEVICE": "cpu",
    "HOOKS.COLLAPSE_SIGNS": False,
}
SAVED_AT = 2  # of the four steps, within an epoch
CHECKPOINT = f"model_iteration{SAVED_AT}.torch"
# The parts of the state that are compared. Others hold times and memory sizes.
OF_TRAINING = ("base_model", "loss", "optimizer", "amp", "progress", "num_updates", "ranks")

Values = Mapping[str, Any]


def resolve_small(overrides: Sequence[str], *values: Values) -> Resolved:
    """Resolve a run as the command line does, with values that make it small.

    overrides: arguments of the command; `config=FILE` chooses another file.
    values: by key path below `config`. Overrides take precedence.
    """
    chosen = any(each.startswith("config=") for each in overrides)
    asked = compose(overrides if chosen else [FILE, *overrides])
    ours = [
        Assignment(f"config.{path}", value, f"config.{path}={value}", may_be_new=True)
        for each in (SMALL, *values)
        for path, value in each.items()
    ]
    return freeze(replace(asked, assignments=[*ours, *asked.assignments]))


@dataclass(frozen=True)
class Spec:
    """The settings of a run; picklable, for other processes."""

    overrides: tuple[str, ...]
    values: tuple[Values, ...] = ()
    double: bool = False
    device: str = "cpu"

    def having(self, *values: Values, double: bool = False) -> Spec:
        double = self.double or double
        return replace(self, values=(*self.values, *values), double=double)

    def resolve(self) -> Resolved:
        return resolve_small(self.overrides, *self.values)


@dataclass
class RunOutcome:
    """The result of a run in plain, picklable values."""

    losses: list[float] = field(default_factory=list)
    test_losses: list[float] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)  # of the loss at each step
    start: dict[str, Tensor] = field(default_factory=dict)  # trainable parameters
    end: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # at the end, flat
    loss_state: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)  # of the state dicts
    changed_by_tests: list[str] = field(default_factory=list)
    num_updates: int = 0
    hooks: dict[str, dict[str, Any]] = field(default_factory=dict)  # what each holds, by class
    results: dict[str, Any] = field(default_factory=dict)  # of the meters in the last test


class Observer(Hook):
    """Observe a run. It is the last hook, so it sees the changes of all others."""

    def __init__(self, outcome: RunOutcome) -> None:
        self.outcome = outcome
        self._before_test: dict[str, Any] = {}

    def on_step(self, task: Any) -> None:
        loss = task.last_batch.loss
        values = self.outcome.losses if task.train else self.outcome.test_losses
        values.append(float(loss) if loss is not None else float("nan"))
        dtype = str(loss.dtype).removeprefix("torch.") if loss is not None else ""
        self.outcome.dtypes.append(dtype)

    def on_phase_end(self, task: Any) -> None:
        if task.train:
            self._before_test = _everything(task)
        elif self._before_test:
            changed = differences(self._before_test, _everything(task))
            self.outcome.changed_by_tests.extend(changed)


def _everything(task: Any) -> dict[str, Any]:
    """Copy all state that a test phase must not change."""
    return copied({
        "model": task.base_model.state_dict(),
        "loss": task.loss.state_dict(),
        "optimizer": task.optimizer.state_dict(),
        "random streams": rng_state(),
        "num_updates": task.num_updates,
    })  # fmt: skip


def _outside(task: Any) -> dict[str, Any]:
    found = {type(part).__name__: outside_state_dict(part) for part in (task.base_model, task.loss)}
    return {f"{name}.{key}": each for name, inside in found.items() for key, each in inside.items()}


def trainable(task: Any) -> dict[str, Tensor]:
    """Return the trainable parameters by the names that optimizer groups and patterns use."""
    named = [*task.base_model.named_parameters()]
    named += [(f"loss.{name}", each) for name, each in task.loss.named_parameters()]
    return {name: each for name, each in named if each.requires_grad}


def build(
    resolved: Resolved, folder: Path, more: Sequence[Any] = (), device: torch.device = CPU
) -> Any:
    """Build the task as the engine does, with the config's hooks and `more`."""
    config = resolved.config
    # These runs need no signal handlers; a rank that makes many runs would install many.
    services = replace(services_of(config, folder, interrupts=False), signals=None)
    task = TASKS.get(config.TRAINER.TASK_NAME)(
        config, folder, device,
        hooks=[*default_hooks(config, folder), *more],
        services=services,
    )  # fmt: skip
    task.prepare()
    return task


def run(
    spec: Spec, folder: Path, resume_from: Path | None = None, hooks: Sequence[Hook] = ()
) -> RunOutcome:
    """Make the whole run. Every rank calls it with the same arguments."""
    outcome = RunOutcome()
    with _default_dtype(torch.float64 if spec.double else torch.float32):
        task = build(spec.resolve(), folder, [*hooks, Observer(outcome)], torch.device(spec.device))
        if resume_from is None:
            task.load_initial_weights()
        else:
            task.set_classy_state(files.read(resume_from)["classy_state_dict"])
        if spec.double:
            read = task.state.next_batch
            task.state.next_batch = lambda: _convert_to_double(read())
        outcome.start = copied(trainable(task))
        loop.run(task)
    task.same_statistics()  # as before a test: batch norms of a rank are not state of the method
    outcome.end = copied(trainable(task))
    state = get_state(task)
    outcome.state = copied({key: state[key] for key in OF_TRAINING})
    outcome.loss_state = copied(task.loss.state_dict())
    outcome.outside = _outside(task)
    outcome.num_updates = task.num_updates
    outcome.hooks = {type(hook).__name__: attributes(hook) for hook in task.hooks}
    outcome.results = {
        key: each for key, each in flat(task.results.get("test", {})).items() if key != "loss"
    }
    return outcome


def _convert_to_double(batch: Any) -> Any:
    """Convert the images of a batch to double precision."""
    return tree_map_only(
        Tensor, lambda each: each.double() if each.is_floating_point() else each, batch
    )


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def preload(*modules: str) -> None:
    """Import these in the server that forks ranks, while this process does something else."""
    multiprocessing.set_forkserver_preload([*modules, __name__])
    multiprocessing.forkserver.ensure_running()


def run_on_ranks(spec: Spec, folder: Path, ranks: int = 2) -> list[RunOutcome]:
    """Make the run on so many new processes of this machine, and return the outcome of each."""
    preload("sslengine.data.augment.compiled")  # once: importing it takes seconds
    with TemporaryDirectory(prefix="sslengine-ranks-") as outcomes:
        start_processes(
            _run_on_rank, (spec, folder, Path(outcomes)), processes=ranks, nodes=1, node_id=0,
            run_id="test", start_method="forkserver",
        )  # fmt: skip
        files = [Path(outcomes, str(number)) for number in range(ranks)]
        return [pickle.loads(each.read_bytes()) for each in files]


def _run_on_rank(spec: Spec, folder: Path, outcomes: Path) -> None:
    torch.set_num_threads(1)
    process_group.join("gloo", CPU, timeout_minutes=2)
    (outcomes / str(rank())).write_bytes(pickle.dumps(run(spec, folder)))
    process_group.leave()
