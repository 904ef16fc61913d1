#!/usr/bin/env python3
"""Images a second on a GPU: methods at 224 pixels, and what each switch brings.

    python tools/perf_measurement/bench_gpu.py --out gpu.json         all of it, some minutes
    python tools/perf_measurement/bench_gpu.py --case simclr --batch 256
    python tools/perf_measurement/bench_gpu.py --case --recipes photos/dino photos/mae

SimCLR and MoCo with a ResNet-50, DINO and MAE with a ViT-S/16, in bfloat16 and channels-last: our
step with the default hooks on a batch in the GPU's memory, and a loop written by hand. For each:
images and milliseconds a step, the launches of a step, peak memory, the operations that torch
counts and their share of the card's peak in bfloat16 (MFU: of cards in PEAKS, or --tflops). Then
SimCLR from JPEG files, beside a loop by hand with torchvision's transforms; the time of each stage
of a step; SimCLR with one switch changed at a time; and the other methods from JPEG files.
--recipes: our step of recipes as they are written, on a batch in the GPU's memory.

Contestants take turns, and the median of the rounds counts. One that fails, for want of memory
say, has its error as its row. `--device cpu --tiny` tries the tool itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from torchvision import transforms
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(Path(__file__).resolve().parent))
import by_hand
import harness

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve
from sslengine.precision import set_kernels
from sslengine.registry import TASKS

CASES = {
    "simclr": "pretrain/simclr/simclr_64gpu_resnet50",
    "moco": "pretrain/moco/moco_1node_resnet50",
    "dino": "pretrain/dino/dino_16gpu_vits16",
    "mae": "pretrain/mae/mae_64gpu_vitl16",
}
MAE_SMALL = [
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM=384",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_HEADS=6",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS=12",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.MLP_DIM=1536",
]
CUDNN_BENCHMARK = "torch.backends.cudnn.benchmark"
# The switches: what is changed for a row of the ablation, of the first case.
SWITCHES: dict[str, dict[str, str]] = {
    "as it is": {},
    "float32": {"MACHINE.PRECISION": "fp32"},
    "float32, TF32": {"MACHINE.PRECISION": "tf32"},
    "float16": {"MACHINE.PRECISION": "fp16"},
    "rows, not channels, last": {"MODEL.CHANNELS_LAST": "false"},
    "compiled": {"MODEL.COMPILE.USE_COMPILE": "true"},
    "optimizer not fused": {"OPTIMIZER.args.fused": "false"},
    "cuDNN does not try its algorithms": {CUDNN_BENCHMARK: "false"},
}
# TFLOP/s in bfloat16 of dense matrices, by the makers' data sheets; the first name that fits.
PEAKS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
}
HALF = ("bf16", "fp16")
PARTS = ("memory", "files", "stages", "switches")
WARM_UP = 5  # steps that are not counted
TURN = 10  # steps; the engine logs once in so many
# Batches of an epoch of a recipe: its end is not measured, and methods that look at all images
# before they train need not wait long.
FEW = 200


Rows = list[dict[str, Any]]


class Ours(by_hand.Begun):
    """The engine on one batch, again and again."""

    def __init__(self, case: str, given: argparse.Namespace, changed: Mapping[str, str]) -> None:
        self.device = torch.device(given.device)
        values = {"MACHINE.PRECISION": "bf16", CUDNN_BENCHMARK: "true", **changed}
        self.tries = values.pop(CUDNN_BENCHMARK) == "true"
        self.precision = values["MACHINE.PRECISION"]
        words = [f"config={CASES.get(case, case)}", *_sizes(case, given)]
        words += [f"config.{key}={value}" for key, value in values.items()]
        config = resolve(words).config
        folder = Path(tempfile.mkdtemp(prefix="bench_gpu_"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.task = TASKS.get(config.TRAINER.TASK_NAME)(config, folder, self.device)
        self.begin()
        if not given.jpegs:
            self.batch = self.task.state.next_batch()
            self.task.state.next_batch = lambda: self.batch

    def step(self) -> None:
        set_kernels(self.precision, self.tries, deterministic=False)
        if not self.task.steps_left():
            self.task.on_phase_end()
            self.task.start_phase()
            self.task.on_phase_start()
        self.task.step()


def _sizes(case: str, given: argparse.Namespace) -> list[str]:
    """A published recipe on one device: its network, views and loss."""
    values = {
        "MACHINE.DEVICE": given.device.split(":")[0].replace("cuda", "gpu"),
        "DISTRIBUTED.NUM_NODES": 1,
        "DISTRIBUTED.NUM_PROC_PER_NODE": 1,
        "DISTRIBUTED.BACKEND": "gloo",
        "MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN": "false",
        "OPTIMIZER.num_iterations": 100_000,
        "LOG_FREQUENCY": TURN,
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": given.batch,
        "DATA.NUM_DATALOADER_WORKERS": given.workers if given.jpegs else 0,
        "DATA.TRAIN.DATA_SOURCES": "[disk_folder]" if given.jpegs else "[synthetic]",
        "DATA.TRAIN.DATA_PATHS": f"[{given.jpegs}]" if given.jpegs else "[]",
        "DATA.TRAIN.DATASET_NAMES": "[]",
        "DATA.TRAIN.DATA_LIMIT": -1 if given.jpegs else 100_000 * given.batch,
    }
    words = [f"config.{key}={value}" for key, value in values.items()]
    return [*words, *(MAE_SMALL if case == "mae" else ()), *given.set]


class ByHand:
    """The same network, batch and precision in plain PyTorch, with an optimizer of torch's."""

    precision = "bf16"

    def __init__(self, case: str, given: argparse.Namespace, views: Any = None) -> None:
        in_memory = argparse.Namespace(**{**vars(given), "jpegs": ""})
        ours = Ours(case, in_memory, {})
        self.device, self.model = ours.device, ours.model
        self.compute, self.after = getattr(by_hand, case)(ours)
        kind: Any = torch.optim.SGD if case in ("simclr", "moco") else torch.optim.AdamW
        fused = self.device.type == "cuda"
        self.optimizer = kind(self.model.parameters(), lr=1e-4, fused=fused or None)
        batch = {key: values[0] for key, values in ours.batch.items()}
        self.batches = repeat(batch) if views is None else self._from_files(views, given)

    def _from_files(self, views: Any, given: argparse.Namespace) -> Iterator[dict[str, Tensor]]:
        """Batches as torchvision's ImageFolder and a loader make them."""
        loader = torch.utils.data.DataLoader(
            ImageFolder(given.jpegs, transform=views),
            batch_size=given.batch, shuffle=True, drop_last=True, num_workers=given.workers,
            pin_memory=self.device.type == "cuda", persistent_workers=given.workers > 0,
        )  # fmt: skip
        while True:
            for made, _ in loader:
                images = torch.cat(made[:2]).to(self.device, non_blocking=True)
                yield {"data": images.contiguous(memory_format=torch.channels_last)}

    def step(self) -> None:
        set_kernels(self.precision, True, deterministic=False)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.compute(self.model, next(self.batches))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for each in self.after:
            each()


def _torchvisions_views() -> Any:
    """SimCLR's, twice."""
    one = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=(0.08, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    return lambda image: [one(image), one(image)]


# ---- measuring


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(contestant: Any, steps: int) -> float:
    _wait(contestant.device)
    began = time.perf_counter()
    for _ in range(steps):
        contestant.step()
    _wait(contestant.device)
    return (time.perf_counter() - began) / steps


def launches(contestant: Any) -> int | None:
    """Kernels and copies that a step starts."""
    if contestant.device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        contestant.step()
        _wait(contestant.device)
    starts = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync")
    return sum(event.count for event in profile.key_averages() if event.key in starts)


def facts(contestant: Any, before: int) -> dict[str, Any]:
    """Of one step, beside its time. `before`: bytes that others held on the GPU."""
    for _ in range(WARM_UP):
        contestant.step()
    found: dict[str, Any] = {"launches": launches(contestant)}
    with FlopCounterMode(display=False) as counter:
        contestant.step()
    found["tflop"] = counter.get_total_flops() / 1e12
    if contestant.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        contestant.step()
        found["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    return found


def race(makers: Mapping[str, Callable[[], Any]], given: argparse.Namespace) -> Rows:
    """A row for each, in the order given."""
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in makers}
    contestants = {}
    for name, make in makers.items():
        before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        with _kept_as_row(rows[name]):
            made = make()
            rows[name] |= facts(made, before)
            contestants[name] = made
        made = None
        gc.collect()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(given.rounds):
        for name, each in contestants.items():
            if "error" not in rows[name]:
                with _kept_as_row(rows[name]):
                    times[name].append(seconds(each, given.turn))
    for name, each in contestants.items():
        if "error" not in rows[name]:
            rows[name] |= _speed(times[name], rows[name]["tflop"], each.precision, given)
    return list(rows.values())


@contextmanager
def _kept_as_row(row: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]


def _speed(
    times: list[float], tflop: float, precision: str, given: argparse.Namespace
) -> dict[str, Any]:
    step = statistics.median(times)
    shared = given.tflops and precision in HALF
    return {
        "batch": given.batch,
        "ms": 1e3 * step,
        "ms_range": [1e3 * min(times), 1e3 * max(times)],
        "images_per_s": given.batch / step,
        "mfu": tflop / step / given.tflops if shared else None,
    }


def peak(card: str) -> float | None:
    """TFLOP/s of the card; None of one that is not in the table."""
    return next((tflops for name, tflops in PEAKS.items() if name in card), None)


def from_files(case: str, given: argparse.Namespace) -> Rows:
    """Each back-end of augmentation in loader workers."""
    makers: dict[str, Callable[[], Any]] = {
        f"{case}, {each}": partial(Ours, case, given, {"DATA.AUGMENT_BACKEND": each})
        for each in given.backends
    }
    if case == "simclr":
        by_torchvision = partial(ByHand, case, given, _torchvisions_views())
        makers["simclr by hand, torchvision"] = by_torchvision
    # One after the other: each has loader workers of its own.
    return [row for name, make in makers.items() for row in race({name: make}, given)]


def stages(case: str, given: argparse.Namespace) -> Rows:
    """Milliseconds of each stage of our step, on the host and on the GPU."""
    failed: dict[str, Any] = {"name": case}
    with _kept_as_row(failed):
        ours = Ours(case, given, {})
        for _ in range(WARM_UP):
            ours.step()
        perf = ours.task.state.perf
        perf.start(measure_gpu=True)
        seconds(ours, given.turn)
        return [{"name": f"{case}, {each.name}", "ms": each.host_ms, "gpu_ms": each.gpu_ms}
                for each in perf.report()]  # fmt: skip
    return [failed]


def as_written(recipe: str, given: argparse.Namespace) -> dict[str, Any]:
    """Our step of a recipe with its own batch, and the GPU's memory that is then in use."""
    batch = resolve([f"config={recipe}"]).config.DATA.TRAIN.BATCHSIZE_PER_REPLICA
    own = argparse.Namespace(**{**vars(given), "batch": 2 if given.tiny else batch})
    own.set = [*given.set, f"config.DATA.TRAIN.DATA_LIMIT={FEW * own.batch}"]
    if given.device.startswith("cuda"):
        torch.cuda.empty_cache()
    (row,) = race({recipe: partial(Ours, recipe, own, {})}, own)
    if given.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(given.device)
        row["used_gb"] = (total - free) / 1e9
    return row


def measured(given: argparse.Namespace) -> dict[str, Rows]:
    """What says most comes first: the command may be stopped."""
    results: dict[str, Rows] = {}

    def add(title: str, rows: Rows) -> None:
        results.setdefault(title, []).extend(rows)
        _show(title, results, given)

    cases = {part: given.case if part in given.parts else [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        files = argparse.Namespace(**vars(given))
        if cases["files"]:
            count = 2 * given.batch if given.tiny else 8192
            files.jpegs = harness.write_images(folder, harness.make_images(min(count, 64)), count)
        for case in cases["memory"]:
            ours, theirs = partial(Ours, case, given, {}), partial(ByHand, case, given)
            add(case, race({"sslengine": ours, "by hand": theirs}, given))
        for recipe in given.recipes:
            add("recipes", [as_written(recipe, given)])
        for case in cases["files"][:1]:
            add("files", from_files(case, files))
        for case in cases["stages"]:
            add("stages", stages(case, given))
        for case in cases["switches"][:1]:
            for name, changed in islice(SWITCHES.items(), 3 if given.tiny else None):
                add("switches", race({name: partial(Ours, case, given, changed)}, given))
        for case in cases["files"][1:]:
            add("files", from_files(case, files))
    return results


COLUMNS = ("name", "batch", "images_per_s", "ms", "gpu_ms", "launches", "peak_gb", "used_gb",
           "tflop", "mfu", "error")  # fmt: skip


def table(rows: Rows) -> str:
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row.get(column) for column in columns]
        shown = (f"{each:.3g}" if isinstance(each, float) else str(each or "") for each in cells)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _show(title: str, results: dict[str, Rows], given: argparse.Namespace) -> None:
    """Print the newest rows, and keep all: the command may be stopped."""
    print(f"{title}\n{table(results[title])}\n", flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def expect_there(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here. --device cpu --tiny tries the command.")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("--case", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--parts", choices=PARTS, nargs="*", default=list(PARTS))
    parser.add_argument("--recipes", nargs="*", default=[], help="photos/dino, and others")
    parser.add_argument("--batch", type=int, default=256, help="images of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=14, help="that read JPEG files")
    parser.add_argument("--backends", nargs="+", default=["numba", "pil"])
    parser.add_argument("--tflops", type=float, help="the peak in bfloat16, for MFU")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--set", nargs="*", default=[], help="more of the config: config.KEY=VALUE")
    parser.add_argument("--tiny", action="store_true", help="2 images, for trying the tool")
    given = parser.parse_args(arguments)
    if given.out and given.out.exists():
        parser.error(f"--out {given.out}: it is there already. Give another name.")
    expect_there(given.device)
    if given.tflops is None and given.device.startswith("cuda"):
        given.tflops = peak(torch.cuda.get_device_name(given.device))
    given.jpegs, given.turn = "", TURN
    if given.tiny:
        given.batch, given.rounds, given.turn, given.workers = 2, 1, 1, 0
        given.backends = given.backends[:1]
    return given


def main(arguments: list[str] | None = None) -> dict[str, Rows]:
    return measured(parsed(arguments))


if __name__ == "__main__":
    main()
