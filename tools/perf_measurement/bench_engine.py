#!/usr/bin/env python3
"""What the engine adds to a training step, beside a bare PyTorch loop and other engines.

    python tools/perf_measurement/bench_engine.py

The same model, optimizer and batches (tensors in memory) are given to each contestant:
the loop of tools/plain_train.py, this engine with its default hooks, and Lightning,
accelerate and mmengine where they are installed (pip install 'sslengine[bench]'). They
take turns within one process, round after round, and the median round counts, so that a
busy machine slows all of them alike. Set-up is not timed, only steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import plain_train

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve_dict
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.log_file import LogWriter
from sslengine.monitor.writers import JsonLinesWriter
from sslengine.registry import register_trunk
from sslengine.task.task import SelfSupervisionTask

TEMPERATURE, RATE = 0.2, 1e-3
Run = Callable[[list[Tensor]], float]  # batches -> seconds


@dataclass(frozen=True)
class Case:
    """A model, by the engine's config and as a plain module, and its batches."""

    name: str
    trunk: dict[str, Any]
    head: list[int]
    plain: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one view
    images: int
    steps: int


@register_trunk("bench_mlp")
class BenchMlp(Trunk):
    """A trunk so small that a step is mostly the engine."""

    feature_names = ("flatten",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = _mlp()

    def features(self, x: Tensor, wanted: Any) -> dict[str, Tensor]:
        return {"flatten": self.layers(x.flatten(1))}


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())


def _plain_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), _mlp(), nn.Linear(512, 64))


def _plain_resnet() -> nn.Module:
    model = resnet18()
    model.fc = nn.Linear(512, 128)
    return model


CASES = {
    "mlp": Case("mlp", {"NAME": "bench_mlp"}, [512, 64], _plain_mlp, (3, 8, 8), 64, 300),
    "resnet18": Case(
        "resnet18",
        {"NAME": "resnet", "RESNETS": {"DEPTH": 18}},
        [512, 128],
        _plain_resnet,
        (3, 64, 64),
        32,
        6,
    ),
}


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The implementation that the engine chooses on a CPU, so that it does not count."""
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)


# ---- contestants: each makes a function that runs the batches it is given and times them


def plain(case: Case) -> Run:
    model = case.plain()
    optimizer = make_optimizer(model)

    def run(batches: list[Tensor]) -> float:
        began = time.perf_counter()
        plain_train.train_steps(model, optimizer, batches, TEMPERATURE, lambda step: RATE)
        return time.perf_counter() - began

    return run


class MemoryFeed:
    """Batches from memory, in the place of the engine's loader, one turn after the other."""

    def __init__(self, images: int, steps: int) -> None:
        self.images = images
        self.num_samples, self.steps_per_epoch = images * steps, steps
        self.batch_sizes = self.global_batch_sizes = [images] * steps
        self.turn: Iterator[Tensor] = iter(())

    def batches(self, *window: int) -> Iterator[dict[str, Any]]:
        indices = torch.arange(2 * self.images)
        while True:
            yield {"data": [next(self.turn)], "label": [indices], "data_idx": [indices]}

    def close(self) -> None:
        pass


def engine(case: Case, log_frequency: int = 10) -> Run:
    config = resolve_dict(_config(case, log_frequency)).config
    folder = Path(tempfile.mkdtemp(prefix="bench_engine_"))
    task = SelfSupervisionTask(config, folder, torch.device("cpu"))
    task.prepare()
    task.writers.extend([LogWriter(), JsonLinesWriter(folder / "metrics.jsonl")])
    feed = MemoryFeed(case.images, task.phases[0].steps)
    task.train_feed = feed  # type: ignore[assignment]
    task.on_start()
    task.start_phase()
    task.on_phase_start()

    def run(batches: list[Tensor]) -> float:
        feed.turn = iter(batches)
        began = time.perf_counter()
        for _ in batches:
            task.step()
        return time.perf_counter() - began

    return run


def _config(case: Case, log_frequency: int) -> dict[str, Any]:
    return {
        "LOG_FREQUENCY": log_frequency,
        "TEST_MODEL": False,
        "DATA": {
            "NUM_DATALOADER_WORKERS": 0,
            "TRAIN": {
                "DATA_SOURCES": ["synthetic"],
                "DATA_LIMIT": case.images * 10**6,
                "DEFAULT_GRAY_IMG_SIZE": 8,
                "BATCHSIZE_PER_REPLICA": case.images,
                "TRANSFORMS": [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
                "COLLATE_FUNCTION": "simclr_collator",
            },
        },
        "MODEL": {"TRUNK": case.trunk, "HEAD": {"PARAMS": [["mlp", {"dims": case.head}]]}},
        "LOSS": {
            "name": "simclr_info_nce_loss",
            "simclr_info_nce_loss": {"temperature": TEMPERATURE},
        },
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
        },
        "DISTRIBUTED": {"NUM_PROC_PER_NODE": 1, "BACKEND": "gloo"},
        "MACHINE": {"DEVICE": "cpu"},
    }


def lightning(case: Case) -> Run:
    import lightning.pytorch as pl

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model = case.plain()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seconds, self.began = model, 0.0, 0.0

        def training_step(self, views: Tensor, index: int) -> Tensor:
            loss = plain_train.simclr_loss(self.model(views), TEMPERATURE)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

        def on_train_epoch_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            self.seconds = time.perf_counter() - self.began

    def run(batches: list[Tensor]) -> float:
        module = Module()
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_model_summary=False, enable_progress_bar=False,
        )  # fmt: skip
        trainer.fit(module, _as_loader(batches))
        return module.seconds

    return run


def accelerate(case: Case) -> Run:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    bare = case.plain()
    model, optimizer = accelerator.prepare(bare, make_optimizer(bare))

    def run(batches: list[Tensor]) -> float:
        loader = accelerator.prepare(_as_loader(batches))
        began = time.perf_counter()
        for step, views in enumerate(loader):
            with accelerator.accumulate(model):
                loss = plain_train.simclr_loss(model(views), TEMPERATURE)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.gather(loss).item()
        return time.perf_counter() - began

    return run


def mmengine(case: Case) -> Run:
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    bare = case.plain()

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bare = bare

        def forward(self, views: Tensor, mode: str = "loss") -> dict[str, Tensor]:
            return {"loss": plain_train.simclr_loss(self.bare(views), TEMPERATURE)}

    class Clock(Hook):  # type: ignore[misc]
        def before_train_epoch(self, runner: Any) -> None:
            self.began = time.perf_counter()

        def after_train_epoch(self, runner: Any) -> None:
            self.seconds = time.perf_counter() - self.began

    def run(batches: list[Tensor]) -> float:
        clock = Clock()
        runner = Runner(
            model=Model(),
            work_dir=tempfile.mkdtemp(prefix="bench_mmengine_"),
            train_dataloader=_as_loader([(views,) for views in batches]),
            train_cfg={"by_epoch": True, "max_epochs": 1},
            optim_wrapper={"optimizer": make_optimizer(bare)},
            default_hooks={"logger": {"type": "LoggerHook", "interval": 10}, "checkpoint": None},
            custom_hooks=[clock],
            log_level="ERROR",
        )
        runner.train()
        return float(clock.seconds)

    return run


def _as_loader(batches: list[Any]) -> Any:
    return torch.utils.data.DataLoader(batches, batch_size=None)


CONTESTANTS: dict[str, Callable[[Case], Run]] = {
    "plain": plain,
    "sslengine": engine,
    "lightning": lightning,
    "accelerate": accelerate,
    "mmengine": mmengine,
}


# ---- the race


def installed(name: str) -> bool:
    return name in ("plain", "sslengine") or importlib.util.find_spec(name) is not None


def race(case: Case, names: list[str], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step, for each contestant and round. The first round is not counted."""
    generator = torch.Generator().manual_seed(0)
    shape = (2 * case.images, *case.shape)
    batches = [torch.randn(shape, generator=generator) for _ in range(min(steps, 16))]
    batches = [batches[index % len(batches)] for index in range(steps)]
    runs = {}
    for name in names:
        torch.manual_seed(0)
        runs[name] = CONTESTANTS[name](case)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            seconds = runs[name](batches) / steps
            if turn:
                times[name].append(seconds)
    return times


def report(case: Case, times: dict[str, list[float]]) -> str:
    """Per contestant: the median, and the median over rounds of what it adds to `plain`."""
    threads = torch.get_num_threads()
    lines = [f"{case.name}: {case.images} images of {case.shape}, threads: {threads}"]
    for name, seconds in times.items():
        pairs = list(zip(seconds, times["plain"], strict=True))
        added = statistics.median(mine - bare for mine, bare in pairs)
        share = statistics.median(mine / bare - 1 for mine, bare in pairs)
        lines.append(
            f"  {name:<12}{1e3 * statistics.median(seconds):>10.3f} ms/step"
            + (f"{1e6 * added:>+10.0f} us{100 * share:>+9.2f} %" if name != "plain" else "")
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of steps")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    names = [name for name in CONTESTANTS if name in {"plain", *options.only} and installed(name)]
    results = {}
    for name in options.case:
        case = CASES[name]
        steps = max(2, math.ceil(case.steps * options.scale))
        results[name] = race(case, names, options.rounds, steps)
        print(report(case, results[name]))
    missing = [name for name in options.only if name not in names]
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return results


if __name__ == "__main__":
    main()
