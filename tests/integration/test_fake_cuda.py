"""A train step makes nothing on the host, copies nothing and waits for nothing on a GPU.

Every method and every train step at a small size, in each precision and form: one of them each in
`make test`, in turn, and all in the long tail.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sslengine import precision
from sslengine.checkpoint.snapshot import copy_to_host
from sslengine.config.components import owns_network
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.engine import build
from sslengine.engine.checkpointing import checkpoint_state
from sslengine.engine.metrics import LogMetrics
from sslengine.engine.saving import get_state
from sslengine.engine.services import Services
from sslengine.engine.state import Reading
from sslengine.engine.task import SelfSupervisionTask
from sslengine.engines.features import extract
from sslengine.hooks.default import default_hooks
from sslengine.models.options import ModelOptions
from sslengine.monitor import store
from sslengine.monitor.writers import Record, Writer
from sslengine.registry import LOSSES
from sslengine.testing import suite_of
from tests.config.recipes import resolved
from tests.contracts.cases import Of
from tests.contracts.test_methods import METHODS, MODELS_SMALL
from tests.contracts.test_train_steps import STEPS
from tests.tail import slow_but

fake_cuda = pytest.importorskip("tests.fake_cuda", reason="this torch has no FakeTensorMode")

TABLES = {"method": METHODS, "train_step": STEPS, "model": MODELS_SMALL}
TRIED = [(kind, name) for kind, table in TABLES.items() for name in table]
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"OPTIMIZER.accumulate": 2},
    "channels_last": {"MODEL.CHANNELS_LAST": True},
    "adamw": {"OPTIMIZER.name": "adamw"},
    "larc": {"OPTIMIZER.use_larc": True, "OPTIMIZER.name": "sgd"},
    "clipped": {"MODEL.GRAD_CLIP.USE_GRAD_CLIP": True},
    "each clipped": {"MODEL.GRAD_CLIP.USE_GRAD_CLIP": True, "MODEL.GRAD_CLIP.PER_PARAMETER": True,
                     "MODEL.GRAD_CLIP.PER_MODULE": False},
    "modules clipped": {"MODEL.GRAD_CLIP.USE_GRAD_CLIP": True, "MODEL.GRAD_CLIP.PER_MODULE": True,
                        "MODEL.GRAD_CLIP.PER_PARAMETER": False},
}  # fmt: skip
# Of several optimizers each clips its own.
REFUSED = {("multi_optimizer_train_step", form) for form in FORMS if form.endswith("clipped")}
WAYS = [(half, form) for form in FORMS for half in ("", "fp16", "bf16")]


def task_of(run: Resolved, folder: Path) -> SelfSupervisionTask:
    cpu = torch.device("cpu")
    hooks = default_hooks(run.config, folder)
    return SelfSupervisionTask(run.config, folder, cpu, hooks=hooks, services=Services())


def small(kind: str, name: str, values: dict[str, Any]) -> Resolved:
    of: Of = TABLES[kind][name]
    suite = suite_of(kind, of.component or name, of.arguments, of.overrides)
    return suite.spec.having({"LOG_FREQUENCY": 1000, **values}).resolve()


def _product() -> list[Any]:
    """Quick: of each component one way, the next component's another."""
    return [
        pytest.param(kind, name, half, form, id=f"{name}-{half or 'fp32'}-{form}",
                     marks=() if (7 * number) % len(WAYS) == way else pytest.mark.slow)
        for number, (kind, name) in enumerate(TRIED)
        for way, (half, form) in enumerate(WAYS)
        if (name, form) not in REFUSED
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "half", "form"), _product())
def test_a_step_stays_on_the_gpu(
    kind: str, name: str, half: str, form: str, tmp_path: Path
) -> None:
    fake_cuda.two_steps(task_of(small(kind, name, FORMS[form]), tmp_path), half)


class _Writer(Writer):
    def __init__(self) -> None:
        self.iterations: list[int] = []

    def write(self, record: Record) -> None:
        self.iterations.append(record.iteration)


def test_a_log_line_reads_the_device_once_and_no_other_step_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    writer, values = _Writer(), {"LOG_FREQUENCY": 2, "DATA.TRAIN.DATA_LIMIT": 16}
    task = task_of(small("method", "byol_loss", values), tmp_path)
    task.made_by.services = Services(metrics=LogMetrics(2))
    task.writers.append(writer)

    def copy(rows: dict[str, Tensor]) -> dict[str, list[float]]:
        reads.append(task.iteration)
        assert {row.device.type for row in rows.values()} == {"cpu", "cuda"}
        return {name: [1.0] * len(row) for name, row in rows.items()}

    monkeypatch.setattr(store, "_copy_to_host", copy)
    with fake_cuda.on_cuda(task, batches=4), fake_cuda.NothingOfTheHost():
        for _ in range(task.phase.steps):
            task.step()
    assert reads == writer.iterations == [1, 2, 4]


def _compiled() -> list[Any]:
    quick = ("mae_loss",)
    return [pytest.param(kind, name, id=name, marks=() if name in quick else pytest.mark.slow)
            for kind, name in TRIED]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), _compiled())
def test_a_compiled_step_stays_on_the_gpu(kind: str, name: str, tmp_path: Path) -> None:
    """What torch's compiler made of the model, run by itself: other back-ends need a real GPU."""
    torch.compiler.reset()
    counters.clear()
    compiled = {"MODEL.COMPILE.USE_COMPILE": True, "MODEL.COMPILE.BACKEND": "eager"}
    fake_cuda.two_steps(task_of(small(kind, name, compiled), tmp_path), "bf16")
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"], counters["graph_break"]


TESTED = ("cross_entropy_multiple_output_single_target", "swav_loss", "byol_loss")


def with_tests(name: str) -> Resolved:
    train = OmegaConf.to_container(small("method", name, {}).config.DATA.TRAIN)
    assert isinstance(train, dict)
    test = {f"DATA.TEST.{key!s}": each for key, each in train.items()}
    of_test = {"DATA.TEST.DATA_LIMIT": 8, "TEST_MODEL": True}
    length = {"DATA.TRAIN.DATA_LIMIT": 8, "OPTIMIZER.num_iterations": 4}
    return small("method", name, {**test, **of_test, **length})


@pytest.mark.parametrize("half", ["", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TESTED)
def test_a_test_phase_stays_on_the_gpu(name: str, half: str, tmp_path: Path) -> None:
    """Between two train phases, with meters; their values, and the loss of a set, may be read."""
    task = task_of(with_tests(name), tmp_path)
    task.prepare()
    read = list(task.parts.feeds.test.batches())
    with fake_cuda.on_cuda(task, half=half) as mode:
        with fake_cuda.NothingOfTheHost():
            for _ in range(2):
                task.step()
        with fake_cuda.Answers():
            task.on_phase_end()
        task.parts.feeds.test.batches = lambda *_: iter(fake_cuda.moved(read, mode))
        task.start_phase()
        assert not task.train
        with fake_cuda.NothingOfTheHost():
            for _ in read:
                task.step()
        with fake_cuda.Answers():
            task.on_phase_end()
            beside = task.beside(Reading(task.parts.feeds.test, task.parts.feeds.options("TEST")))
            with fake_cuda.NothingOfTheHost():
                for _ in read:
                    beside.step()
    assert "loss" in task.results["test"]


def test_features_are_computed_on_the_gpu(tmp_path: Path) -> None:
    """And read from it when a batch is done."""
    task = task_of(small("method", "simclr_info_nce_loss", {}), tmp_path)
    task.prepare()
    read = list(task.train_feed.batches(0))

    def compute(images: Tensor) -> dict[str, Tensor]:
        with fake_cuda.NothingOfTheHost():
            return {"head": task.base_model.eval()(images)[0]}

    with fake_cuda.on_cuda(task) as mode, fake_cuda.Answers():
        task.train_feed.batches = lambda: iter(fake_cuda.moved(read, mode))
        options = task.parts.feeds.options("TRAIN")
        found = list(extract(compute, task.train_feed, options, task.parts.precision))
    assert [len(each.layers["head"]) for each in found] == [8] * len(read)
    assert {each.layers["head"].device.type for each in found} == {"cpu"}


RESUMED = (*TESTED, "moco_loss", "simclr_info_nce_loss", "dinov2_loss")
SAVED = ("simclr_info_nce_loss", "byol_loss", "moco_loss", "deepclusterv2_loss", "dinov2_loss")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == "byol_loss" else pytest.mark.slow) for each in SAVED],
)
def test_a_checkpoint_waits_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor is copied once, into pinned memory; the host waits when all copies are started."""
    task, waited_after, pinned = task_of(small("method", name, {}), tmp_path), [], []
    reserve = torch.empty_like

    def reserved(tensor: Tensor, *, device: str, pin_memory: bool) -> Tensor:
        pinned.append(pin_memory)
        return reserve(tensor, device=device)

    with fake_cuda.on_cuda(task):
        for _ in range(2):
            task.step()
        with fake_cuda.Answers():
            state = tree_map(_none_of_the_host, checkpoint_state(task))
        there = [each for each in tree_leaves(state) if fake_cuda.is_there(each)]
        with monkeypatch.context() as patch, fake_cuda.CopiesIntoPinned() as copies:
            patch.setattr(torch, "empty_like", reserved)
            patch.setattr(Tensor, "data_ptr", fake_cuda.place_of)
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            patch.setattr(torch.cuda, "synchronize", lambda: waited_after.append(copies.started))
            snapshot = copy_to_host(state)
    assert len(there) > len([*task.base_model.parameters()])  # the optimizer's, too
    assert 0 < copies.started <= len(there)
    assert waited_after == [copies.started] == [sum(pinned)] == [len(pinned)]
    assert not any(fake_cuda.is_there(each) for each in tree_leaves(snapshot))


@pytest.mark.parametrize("name", slow_but([TESTED[0]], RESUMED))
def test_a_step_after_a_resume_stays_on_the_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a phase, so that meters go on from sums of a file, whose tensors are on the CPU."""
    begun, resumed = (task_of(with_tests(name), tmp_path / each) for each in ("begun", "resumed"))
    begun.prepare()
    begun.on_start()
    begun.start_phase()
    begun.on_phase_start()
    begun.step()
    state = get_state(begun, deep_copy=True)
    monkeypatch.setattr("sslengine.engine.saving.set_rng_state", lambda _: None)
    with fake_cuda.on_cuda(resumed) as mode:
        with fake_cuda.Answers():
            resumed.set_classy_state(tree_map(partial(_of_a_file, mode), state))
        with fake_cuda.NothingOfTheHost():
            resumed.step()
        with fake_cuda.Answers():
            assert all(each.value() for each in resumed.meters)


class _NothingDrawn(TorchDispatchMode):
    """Raises where random numbers are drawn on the device of the model."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        draws = torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **(kwargs or {}))
        assert not (draws and result.device.type == "meta"), func
        return result


@pytest.mark.parametrize("name", METHODS)
def test_a_method_draws_its_first_values_on_the_host(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed gives the same values on each device, to which the model is moved before."""
    config, meta = small("method", name, {}).config, torch.device("meta")
    model: Any = build.build_base_model(config, torch.device("cpu")).to(meta)
    if owns_network(LOSSES.get(config.LOSS.name)):  # its trunk's width is looked for on `meta`
        trunk = build.lend(model, read(config, ModelOptions))
        monkeypatch.setattr(build, "lend", lambda *_: trunk)
    with _NothingDrawn():
        loss = build.build_loss(config, model, 16, meta, [8])
        build.attach(config, loss, model)


def _of_a_file(mode: Any, value: Any) -> Any:
    return mode.from_tensor(value) if isinstance(value, Tensor) else value


def _none_of_the_host(value: Any) -> Any:
    """Such as random states: a clone needs no device."""
    return None if isinstance(value, Tensor) and not fake_cuda.is_there(value) else value


class Faulty(nn.Module):
    """What a loss may do that costs a wait or a copy, by name."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        match self.fault:
            case "reads":
                return output.sum() * output.detach().sum().item()
            case "chooses":
                return output[output > 0].sum()
            case "makes":
                return (output * torch.arange(float(output.shape[1])).to(output.device)).sum()
            case "mixes":
                return (output + torch.ones(output.shape[1])).sum()
            case "copies":
                mask = torch.zeros_like(output)
                mask[0, 0] = True
                return (output * mask).sum()
            case "loops":
                torch._foreach_mul_([output.detach()], [output.detach().sum()])
        return output.sum()


@pytest.mark.parametrize("fault", ["reads", "chooses", "makes", "mixes", "copies", "loops", ""])
def test_what_it_finds(fault: str, tmp_path: Path) -> None:
    name = f"{__name__}:Faulty"
    run = resolved(LOSS={"name": name, "Faulty": {"fault": fault}}, LOG_FREQUENCY=1000)
    task = task_of(run, tmp_path)
    if fault:
        with pytest.raises(fake_cuda.Unwanted):
            fake_cuda.two_steps(task)
    else:
        fake_cuda.two_steps(task)


class NoFloat64(TorchDispatchMode):
    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, Tensor) and fake_cuda.is_there(each):
                assert each.dtype != torch.float64, f"{func}: float64 on the device"
        return result


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is made on the CPU before it moves."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("kind", "name"), slow_but([("method", "byol_loss"), ("method", "nce_loss_with_memory")], TRIED)
)
@pytest.mark.usefixtures("without_float64")
def test_steps_without_float64(kind: str, name: str, tmp_path: Path) -> None:
    task = task_of(small(kind, name, {}), tmp_path)
    with fake_cuda.on_cuda(task), NoFloat64(), fake_cuda.Answers():
        for _ in range(2):
            task.step()
    assert task.iteration == 2


@pytest.mark.usefixtures("without_float64")
def test_a_test_phase_without_float64(tmp_path: Path) -> None:
    task = task_of(with_tests("cross_entropy_multiple_output_single_target"), tmp_path)
    task.prepare()
    read = list(task.parts.feeds.test.batches())
    with fake_cuda.on_cuda(task) as mode, NoFloat64(), fake_cuda.Answers():
        for _ in range(2):
            task.step()
        task.on_phase_end()
        task.parts.feeds.test.batches = lambda *_: iter(fake_cuda.moved(read, mode))
        task.start_phase()
        for _ in read:
            task.step()
        task.on_phase_end()
        beside = task.beside(Reading(task.parts.feeds.test, task.parts.feeds.options("TEST")))
        for _ in read:
            beside.step()
    assert "loss" in task.results["test"]
