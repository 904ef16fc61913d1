#!/usr/bin/env python3
"""What the engine adds to a training step, beside a bare PyTorch loop and other engines.

    python tools/perf_measurement/bench_engine.py

The same model, optimizer and batches (tensors in memory) are given to each contestant:
the loop of tools/plain_train.py, this engine with its default hooks, and Lightning,
accelerate and mmengine where they are installed (pip install 'sslengine[bench]'). They
take turns of ten steps within one process, so that a busy machine slows all of them alike,
and the median of five rounds counts. Set-up is not timed.

On a machine that is never quiet `--clock cpu --threads 1` counts the CPU time of the thread that
makes the steps instead. The cases byol, crops, accumulate and ranks (two of gloo) are this engine's
and the bare loop's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import logging
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for a second process
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import plain_train

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve_dict
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import DataError
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.console import LogWriter
from sslengine.monitor.writers import JsonLinesWriter, RunPlace
from sslengine.registry import register_trunk

TEMPERATURE, RATE = 0.2, 1e-3
TURN = 10  # steps; the engine and others log once in so many


@dataclass(frozen=True)
class Case:
    """A model, by the engine's config and as a plain module, and its batches."""

    name: str
    trunk: dict[str, Any]
    head: tuple[str, dict[str, Any]]
    plain: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one view
    images: int
    turns: int  # of a round
    channels_last: bool = False  # as the plain module has it
    # What is not SimCLR with a step for each batch: the loop by hand, and what the config says.
    by_hand: Callable[[Case, Iterator[Tensor]], None] | None = None
    loss: str = "simclr_info_nce_loss"
    views: int = 2  # more than two: crops, a tensor each
    optimizer: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1


@register_trunk("bench_mlp")
class BenchMlp(Trunk):
    """A trunk so small that a step is mostly the engine."""

    feature_names = ("flatten",)

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.relu = nn.Linear(192, 256), nn.Linear(256, 256), nn.ReLU()

    def features(self, x: Tensor, wanted: Any) -> dict[str, Tensor]:
        return {"flatten": self.relu(self.fc2(self.relu(self.fc1(x.flatten(1)))))}


def _plain_mlp() -> nn.Module:
    """Trunk and head, as the models of tools/plain_train.py."""
    layers = [nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(nn.Sequential(nn.Flatten(), *layers), nn.Sequential(nn.Linear(256, 64)))


def _plain_resnet() -> nn.Module:
    return plain_train.make_model(1.0, (2, 2, 2, 2), (128,))


def _byol(case: Case, batches: Iterator[Tensor]) -> None:
    """With a teacher, and on several ranks in DDP."""
    projector, predictor = case.plain(), nn.Linear(64, 64)
    teacher = copy.deepcopy(projector).requires_grad_(False)
    student: nn.Module = _Student(projector, predictor)
    if case.ranks > 1:
        student = DistributedDataParallel(student, gradient_as_bucket_view=True)
    optimizer = make_optimizer(student)
    pairs = list(projector.parameters()), list(teacher.parameters())
    for views in batches:
        predictions = student(views)
        with torch.no_grad():
            targets = teacher(views)
        other = targets.roll(len(targets) // 2, dims=0)
        loss = 4 - 4 * F.cosine_similarity(predictions, other, dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*pairs[1]], [*pairs[0]], 0.01)


class _Student(nn.Module):
    def __init__(self, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.projector, self.predictor = projector, predictor

    def forward(self, views: Tensor) -> Tensor:
        return self.predictor(self.projector(views))  # type: ignore[no-any-return]


def _crops(case: Case, batches: Iterator[Tensor]) -> None:
    """SimCLR over several crops: each other one is the positive in turn."""
    model = case.plain()
    optimizer = make_optimizer(model)
    for views in batches:
        embeddings = F.normalize(model(torch.cat(views.chunk(case.views))))
        rows = torch.arange(len(embeddings))
        same = [rows.roll(number * case.images) for number in range(case.views)]
        logits = embeddings @ embeddings.T / TEMPERATURE
        losses = []
        for number in range(1, case.views):
            others = torch.stack([*same[:number], *same[number + 1 :]], dim=1)
            left = logits.scatter(1, others, float("-inf"))
            losses.append(F.cross_entropy(left, same[number]))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


def _accumulate(case: Case, batches: Iterator[Tensor]) -> None:
    """Two batches for each step of the optimizer."""
    model = case.plain()
    optimizer = make_optimizer(model)
    for number, views in enumerate(batches):
        if number % 2 == 0:
            optimizer.zero_grad()
        (plain_train.simclr_loss(model(views), TEMPERATURE) / 2).backward()
        if number % 2:
            optimizer.step()


_MLP: tuple[Any, ...] = ({"NAME": "bench_mlp"}, ("mlp", {"dims": [256, 64]}), _plain_mlp)
_PREDICTS = {"dims": [256, 64], "predictor_dims": [64, 64], "use_bn": False}
_WITH_TEACHER: tuple[Any, ...] = (_MLP[0], ("predictor_head", _PREDICTS), _plain_mlp)
_SIZES: tuple[Any, ...] = ((3, 8, 8), 16, 60)
CASES = {
    "mlp": Case("mlp", *_MLP, *_SIZES),
    "byol": Case("byol", *_WITH_TEACHER, *_SIZES, by_hand=_byol, loss="byol_loss"),
    "crops": Case(
        "crops", *_MLP, *_SIZES, by_hand=_crops, loss="multicrop_simclr_info_nce_loss", views=4
    ),
    "accumulate": Case(
        "accumulate", *_MLP, *_SIZES, by_hand=_accumulate, optimizer={"accumulate": 2}
    ),
    "ranks": Case("ranks", *_WITH_TEACHER, *_SIZES, by_hand=_byol, loss="byol_loss", ranks=2),
    "resnet18": Case(
        "resnet18",
        {"NAME": "resnet", "RESNETS": {"DEPTH": 18}},
        ("mlp", {"dims": [512, 128]}),
        _plain_resnet,
        (3, 64, 64),
        32,
        2,
        channels_last=True,
    ),
}


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The implementation that the engine chooses on a CPU, so that it does not count."""
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)


# ---- contestants: each builds what it needs, then trains on the batches until they end


def plain(case: Case, batches: Iterator[Tensor]) -> None:
    if case.by_hand is not None:
        case.by_hand(case, batches)
        return
    model = case.plain()
    plain_train.train_steps(model, make_optimizer(model), batches, TEMPERATURE, lambda step: RATE)


class MemoryFeed:
    """Batches from memory, in the place of the engine's loader."""

    def __init__(self, case: Case, steps: int, batches: Iterator[Tensor]) -> None:
        of_all = case.images * case.ranks
        self.num_samples, self.steps_per_epoch = of_all * steps, steps
        self.batch_sizes, self.global_batch_sizes = [case.images] * steps, [of_all] * steps
        self._indices = torch.arange(case.views * case.images)
        self._batches, self._views = batches, case.views

    def batches(self, *window: int) -> Iterator[dict[str, Any]]:
        for views in self._batches:
            data = views if self._views == 2 else list(views.chunk(self._views))
            yield {"data": [data], "label": [self._indices], "data_idx": [self._indices]}

    def close(self) -> None:
        pass


def engine(case: Case, batches: Iterator[Tensor]) -> None:
    task = engine_task(case, batches)
    with contextlib.suppress(DataError):  # the batches have ended, the phase has not
        while task.steps_left():
            task.step()
    task.on_end()


def engine_task(case: Case, batches: Iterator[Tensor]) -> SelfSupervisionTask:
    """At its first step, with default hooks and writers, and the given batches as its data."""
    config = resolve_dict(_config(case)).config
    folder = Path(tempfile.mkdtemp(prefix="bench_engine_"))
    task = SelfSupervisionTask(config, folder, torch.device("cpu"))
    task.prepare()
    task.writers.extend(each(RunPlace(folder, 0)) for each in (LogWriter, JsonLinesWriter))
    task.parts.feeds.train = MemoryFeed(case, task.phases[0].steps, batches)  # type: ignore[assignment]
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    return task


def _config(case: Case) -> dict[str, Any]:
    return {
        "LOG_FREQUENCY": TURN,
        "TEST_MODEL": False,
        "DATA": {
            "NUM_DATALOADER_WORKERS": 0,
            "TRAIN": {
                "DATA_SOURCES": ["synthetic"],
                "DATA_LIMIT": case.images * 10**6,
                "DEFAULT_GRAY_IMG_SIZE": 8,
                "BATCHSIZE_PER_REPLICA": case.images,
                "TRANSFORMS": [_replicate(case), {"name": "ToTensor"}],
                "COLLATE_FUNCTION": "simclr_collator" if case.views == 2 else "multicrop_collator",
            },
        },
        "MODEL": {
            "TRUNK": case.trunk,
            "HEAD": {"PARAMS": [list(case.head)]},
            "CHANNELS_LAST": case.channels_last,
        },
        "LOSS": {"name": case.loss, case.loss: _TEMPERED.get(case.loss, {})},
        "OPTIMIZER": {
            "name": "sgd",
            "momentum": 0.9,
            "weight_decay": 0.0,
            "num_epochs": 1,
            "param_schedulers": {
                "lr": {
                    "name": "cosine",
                    "start_value": RATE,
                    "end_value": RATE,
                    "update_interval": "step",
                }
            },
            **case.optimizer,
        },
        "DISTRIBUTED": {"NUM_PROC_PER_NODE": case.ranks, "BACKEND": "gloo"},
        "MACHINE": {"DEVICE": "cpu"},
    }


_TEMPERED = {
    name: {"temperature": TEMPERATURE}
    for name in ("simclr_info_nce_loss", "multicrop_simclr_info_nce_loss")
}


def _replicate(case: Case) -> dict[str, Any]:
    if case.views == 2:
        return {"name": "ImgReplicatePil"}
    crops = {"num_crops": [case.views], "size_crops": [8], "crop_scales": [[0.5, 1.0]]}
    return {"name": "ImgPilToMultiCrop", "total_num_crops": case.views, **crops}


def lightning(case: Case, batches: Iterator[Tensor]) -> None:
    import lightning.pytorch as pl

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model = case.plain()

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, views: Tensor, index: int) -> Tensor:
            loss = plain_train.simclr_loss(self.model(views), TEMPERATURE)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, log_every_n_steps=TURN,
        logger=pl.loggers.CSVLogger(tempfile.mkdtemp(prefix="bench_lightning_")),
    )  # fmt: skip
    trainer.fit(Module(), OneEpoch(batches))


def accelerate(case: Case, batches: Iterator[Tensor]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    bare = case.plain()
    model, optimizer = accelerator.prepare(bare, make_optimizer(bare))
    for step, views in enumerate(batches):
        with accelerator.accumulate(model):
            loss = plain_train.simclr_loss(model(views), TEMPERATURE)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if step % TURN == 0:
            accelerator.gather(loss).item()


def mmengine(case: Case, batches: Iterator[Tensor]) -> None:
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    bare = case.plain()

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bare = bare

        def forward(self, views: Tensor, mode: str = "loss") -> dict[str, Tensor]:
            return {"loss": plain_train.simclr_loss(self.bare(views), TEMPERATURE)}

    runner = Runner(
        model=Model(),
        work_dir=tempfile.mkdtemp(prefix="bench_mmengine_"),
        train_dataloader=DataLoader(OneEpoch((views,) for views in batches), batch_size=None),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": make_optimizer(bare)},
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": TURN},
            "checkpoint": None,
            "sampler_seed": None,  # there is no sampler
        },
        log_level="ERROR",
    )
    runner.train()


class OneEpoch(IterableDataset[Any]):
    """An iterator as frameworks want to see it."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __len__(self) -> int:
        return 10**6  # mmengine wants to know; it ends earlier


CONTESTANTS: dict[str, Callable[[Case, Iterator[Tensor]], None]] = {
    "plain": plain,
    "sslengine": engine,
    "lightning": lightning,
    "accelerate": accelerate,
    "mmengine": mmengine,
}


# ---- the race


OWN = ("plain", "sslengine")


def installed(name: str) -> bool:
    return name in OWN or importlib.util.find_spec(name) is not None


# CPU time: that of the contestant's own thread. It leaves out threads that help it.
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class Race:
    """Each contestant trains in a thread of its own, and waits there for its next turn."""

    def __init__(self, case: Case, names: list[str], turns: int, clock: str = "wall") -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (case.views * case.images, *case.shape)
        self._clock = CLOCKS[clock]
        self.batches = [torch.randn(shape, generator=generator) for _ in range(TURN)]
        self.case, self.names, self.turns = case, names, turns
        self.seconds: dict[str, list[float]] = {name: [] for name in names}  # a step, by turn
        self._gates = {name: threading.Semaphore(0) for name in names}
        self._back = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def run(self) -> dict[str, list[float]]:
        threads = [threading.Thread(target=self._contest, args=(name,)) for name in self.names]
        for thread in threads:
            thread.daemon = True  # an error of one must not leave the others waiting for ever
            thread.start()
            self._wait()  # it is built, and asks for its first batch
        for turn in range(self.turns + 1):
            for name, thread in zip(self.names, threads, strict=True):
                self._gates[name].release()
                self._wait()
                if turn == self.turns:  # alone to its end: ranks may meet there
                    thread.join()
        # The first turn is not counted.
        return {name: seconds[1:] for name, seconds in self.seconds.items()}

    def _wait(self) -> None:
        self._back.acquire()
        if self._errors:
            raise self._errors[0]

    def _contest(self, name: str) -> None:
        torch.manual_seed(0)
        try:
            CONTESTANTS[name](self.case, self._lane(name))
        except BaseException as error:
            self._errors.append(error)
            self._back.release()

    def _lane(self, name: str) -> Iterator[Tensor]:
        """The batches of one contestant; a turn's time is from its first to the next request."""
        for _ in range(self.turns + 1):
            self._back.release()
            self._gates[name].acquire()
            began = self._clock()
            yield from self.batches
            self.seconds[name].append((self._clock() - began) / TURN)
        self._back.release()


def rounds_of(
    case: Case, names: list[str], turns: int, rounds: int, clock: str = "wall"
) -> dict[str, list[float]]:
    """Each round's median turn. In each all is built again, in another order: where tensors
    happen to lie in memory moves a step by as much as an engine costs."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name, seconds in Race(case, names[first:] + names[:first], turns, clock).run().items():
            times[name].append(statistics.median(seconds))
    return times


def rounds_of_ranks(case: Case, *how: Any) -> dict[str, list[float]]:
    """Rank 0's times. Contestants take their turns in the same order on each rank."""
    spawn = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    times = spawn.Queue()
    ranks = [
        spawn.Process(
            target=_rank, args=(number, port, torch.get_num_threads(), times, case.name, *how)
        )
        for number in range(case.ranks)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
        if each.exitcode:
            raise SystemExit(f"a rank has failed: {each.exitcode}")
    return times.get()  # type: ignore[no-any-return]


def _rank(number: int, port: int, threads: int, times: Any, name: str, *how: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=number, world_size=CASES[name].ranks)
    own = rounds_of(CASES[name], *how)
    dist.destroy_process_group()
    if number == 0:
        times.put(own)


def report(case: Case, times: dict[str, list[float]]) -> str:
    """Per contestant and over rounds: the median, and that of what it adds to `plain`."""
    threads = torch.get_num_threads()
    lines = [f"{case.name}: {case.images} images of {case.shape}, threads: {threads}"]
    for name, seconds in times.items():
        pairs = list(zip(seconds, times["plain"], strict=True))
        added = statistics.median(mine - bare for mine, bare in pairs)
        share = statistics.median(mine / bare - 1 for mine, bare in pairs)
        lines.append(
            f"  {name:<12}{1e3 * statistics.median(seconds):>10.3f} ms/step"
            + (f"{1e6 * added:>+8.0f} us{100 * share:>+9.2f} %" if name != "plain" else "")
        )
    return "\n".join(lines)


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Those of this process and of its ranks, deleted at the end."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="bench_engine_") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR") if before[1] is None else os.environ.update(TMPDIR=before[1])


def main(arguments: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of turns")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    names = [name for name in CONTESTANTS if name in {"plain", *options.only} and installed(name)]
    results = {}
    with temporary_files():
        for name in options.case:
            case = CASES[name]
            turns = max(1, round(case.turns * options.scale))
            racing = names if case.by_hand is None else [n for n in names if n in OWN]
            run = rounds_of if case.ranks == 1 else rounds_of_ranks
            results[name] = run(case, racing, turns, options.rounds, options.clock)
            print(report(case, results[name]))
    missing = [name for name in options.only if name not in names]
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return results


if __name__ == "__main__":
    main()
