#!/usr/bin/env python3
"""Images a second of a whole SimCLR run, beside lightly's transforms and loss in Lightning.

    python tools/perf_measurement/bench_end_to_end.py                      48 px, PNG files
    python tools/perf_measurement/bench_end_to_end.py --case jpeg224       224 px from 500x375 JPEGs
    python tools/perf_measurement/bench_end_to_end.py --stages             where our time goes

Both train on the same files, with the same network, views, batch, number of loader workers and
threads: a ResNet-10 of a quarter of the width and a projection of two layers. Each is configured
as its users have it: lightly's SimCLRTransform, NTXentLoss and a Trainer without checkpoints and
logger; our quickstart with its checkpoints, metrics and hooks, channels-last as it sets it, and
the `fast` extra. `--precision bf16` trains both under autocast.

They take turns, each in processes of its own. The first epoch (start-up, compiling, caches) is not
counted. With --stages: CPU seconds for 1,000 images of our parts, the least of some steps, in one
process. The threads of the model can make no more images a second than that.

Needs `pip install 'sslengine[bench]'`; the 48 px case reads Fashion-MNIST where Debian's package
dataset-fashion-mnist puts it, and generated images without it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
BATCH, TEMPERATURE, RATE = 128, 0.1, 2e-3
HEAD = (128, 128)


@dataclass(frozen=True)
class Case:
    side: int  # of a view, in pixels
    crop: float  # smallest share of the image
    blur: bool
    images: int
    pictures: Callable[[], Iterator[Image.Image | bytes]]


def fashion() -> Iterator[Image.Image]:
    """Photographs of products, 28 x 28 and grey, as files of RGB."""
    if not FASHION.exists():
        yield from shapes()
        return
    with gzip.open(FASHION) as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    for image in pixels:
        yield Image.fromarray(image).convert("RGB")


def shapes() -> Iterator[Image.Image]:
    from sslengine.data.sources.generated import draw_shape

    for number in range(60_000):
        yield Image.fromarray(draw_shape("TRAIN", number, 48))


def jpegs() -> Iterator[bytes]:
    """As large as ImageNet's, and as large in bytes; a few, again and again."""
    from bench_data import make_images

    few = make_images(64)
    while True:
        yield from few


CASES = {
    "fashion48": Case(48, 0.5, blur=False, images=10_000, pictures=fashion),
    "jpeg224": Case(224, 0.08, blur=True, images=1_024, pictures=jpegs),
}


def write_files(case: Case, images: int, folder: Path) -> None:
    inner = folder / "images"
    inner.mkdir()
    for number, picture in zip(range(images), case.pictures(), strict=False):
        if isinstance(picture, bytes):
            (inner / f"{number:06}.jpg").write_bytes(picture)
        else:
            picture.save(inner / f"{number:06}.png")


# ---- the contestants: each trains for so many epochs and returns when each of them ended


def sslengine(case: Case, folder: Path, given: argparse.Namespace) -> list[float]:
    from classy_vision.hooks import ClassyHook

    from sslengine.launch import cli

    ends: list[float] = []

    class EpochEnds(ClassyHook):
        on_start = on_phase_start = on_forward = on_loss_and_meter = ClassyHook._noop
        on_backward = on_step = on_end = ClassyHook._noop

        def on_phase_end(self, task: Any) -> None:
            ends.append(time.perf_counter())

    sys.modules["epoch_ends"] = sys.modules[__name__]
    globals()["EpochEnds"] = EpochEnds
    with tempfile.TemporaryDirectory() as run:
        cli.main([*config_of(case, folder, given), f"config.CHECKPOINT.DIR={run}"])
    return ends


def config_of(case: Case, folder: Path, given: argparse.Namespace) -> list[str]:
    """The quickstart, on the files."""
    transforms: list[dict[str, Any]] = [
        {"name": "ImgReplicatePil", "num_times": 2},
        {"name": "RandomResizedCrop", "size": case.side, "scale": [case.crop, 1.0]},
        {"name": "RandomHorizontalFlip", "p": 0.5},
        {"name": "ImgPilColorDistortion", "strength": 1.0},
    ]
    if case.blur:
        transforms.append({"name": "ImgPilGaussianBlur", "p": 0.5})
    mean_and_spread = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    transforms += [{"name": "ToTensor"}, {"name": "Normalize", **mean_and_spread}]
    precision = {"USE_AMP": given.precision == "bf16", "AMP_TYPE": "pytorch"}
    values = {
        "DATA.TRAIN.DATA_SOURCES": ["disk_folder"],
        "DATA.TRAIN.DATA_PATHS": [str(folder)],
        "DATA.TRAIN.DATA_LIMIT": -1,
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": BATCH,
        "DATA.TRAIN.TRANSFORMS": transforms,
        "DATA.NUM_DATALOADER_WORKERS": given.workers,
        "OPTIMIZER.num_epochs": given.epochs,
        "MODEL.AMP_PARAMS": {**precision, "AMP_DTYPE": "bfloat16"},
        "HOOKS.EXTRA": ["epoch_ends:EpochEnds"],
    }
    return [
        "config=quickstart/simclr",
        *(f"config.{key}={_in_yaml(value)}" for key, value in values.items()),
    ]


def _in_yaml(value: Any) -> str:
    """As Hydra reads it: keys without quotes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_in_yaml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_yaml, value)) + "]"
    return json.dumps(value)


def lightly(case: Case, folder: Path, given: argparse.Namespace) -> list[float]:
    import lightning
    import plain_train
    import torch
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    ends: list[float] = []

    class SimCLR(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain_train.make_model(head=HEAD)
            self.model.to(memory_format=torch.contiguous_format)
            self.criterion = NTXentLoss(temperature=TEMPERATURE)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            first, second = batch[0]
            return self.criterion(self.model(first), self.model(second))

        def on_train_epoch_end(self) -> None:
            ends.append(time.perf_counter())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=1e-4)

    views = SimCLRTransform(
        input_size=case.side, min_scale=case.crop, gaussian_blur=0.5 if case.blur else 0.0
    )
    loader = torch.utils.data.DataLoader(
        LightlyDataset(str(folder), transform=views),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
    )
    trainer = lightning.Trainer(
        max_epochs=given.epochs,
        accelerator="cpu",
        precision="bf16-mixed" if given.precision == "bf16" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SimCLR(), loader)
    return ends


CONTESTANTS = {"sslengine": sslengine, "lightly": lightly}


# ---- turns


def run_child(name: str, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    """In processes of its own: images a second, and CPU milliseconds an image."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
    options = {
        "case": given.case, "images": given.images, "workers": given.workers,
        "threads": given.threads, "epochs": given.epochs, "precision": given.precision,
    }  # fmt: skip
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads), "BENCH_FOLDER": str(folder)}
    result = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    if result.returncode:
        raise SystemExit(f"{name}:\n{result.stdout}{result.stderr}")
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def child(given: argparse.Namespace) -> None:
    """Trains, and prints its rates as the last line."""
    case = CASES[given.case]
    ends = CONTESTANTS[given.child](case, Path(os.environ["BENCH_FOLDER"]), given)
    images = (given.images // BATCH) * BATCH * (len(ends) - 1)
    own, workers = (
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    rates = {"rate": images / (ends[-1] - ends[0]), "own": own, "workers": workers}
    print(json.dumps(rates))


def stages(case: Case, folder: Path, run: Path, given: argparse.Namespace) -> dict[str, float]:
    """CPU seconds for 1,000 images: to read and transform them, and of the parts of a step."""
    import torch

    from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
    from sslengine.config.resolve import resolve
    from sslengine.engine.services import Services
    from sslengine.engine.step import TrainStep
    from sslengine.engine.task import SelfSupervisionTask

    torch.set_num_threads(given.threads)
    arguments = [each for each in config_of(case, folder, given) if "epoch_ends" not in each]
    config = resolve([*arguments, "config.DATA.NUM_DATALOADER_WORKERS=0"]).config
    task: Any = SelfSupervisionTask(config, run, torch.device("cpu"), hooks=[], services=Services())
    task.prepare()
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    step, least = TrainStep(), dict[str, float]()

    def timed(name: str, part: Callable[..., Any], *of: Any) -> Any:
        before = time.process_time()
        result = part(task, *of)
        least[name] = min(least.get(name, math.inf), time.process_time() - before)
        return result

    for _ in range(given.images // BATCH):
        sample = timed("input", step.read)
        output = timed("forward", step.forward, sample)
        loss = timed("loss", step.losses, output, sample)
        step.record(task, loss)
        timed("backward", step.backward, loss)
        timed("optimizer", step.update)
    return {name: 1000 * seconds / BATCH for name, seconds in least.items()}


def show_stages(found: dict[str, float], threads: int) -> None:
    for name, seconds in found.items():
        print(f"{name:10} {seconds:6.3f} CPU s for 1,000 images")
    model = sum(found.values()) - found["input"]
    print(f"{'model':10} {model:6.3f}: at most {1000 * threads / model:.0f} images/s")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, default="fashion48")
    parser.add_argument("--images", type=int, help="files; by default as the case has them")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.images = given.images or CASES[given.case].images
    return given


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    given = parsed(arguments)
    if given.child:
        child(given)
        return {}
    if given.stages:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as run:
            write_files(CASES[given.case], given.images, Path(folder))
            show_stages(stages(CASES[given.case], Path(folder), Path(run), given), given.threads)
        return {}
    rates: dict[str, list[float]] = {name: [] for name in given.only}
    with tempfile.TemporaryDirectory() as folder:
        write_files(CASES[given.case], given.images, Path(folder))
        for number in range(given.rounds):
            for name in given.only:
                found = run_child(name, Path(folder), given)
                rates[name].append(found["rate"])
                print(f"round {number + 1}  {name:10} {found['rate']:8.0f} images/s", flush=True)
    for name, each in rates.items():
        middle = statistics.median(each)
        print(f"{name:10} {middle:8.0f} images/s ({min(each):.0f} to {max(each):.0f})")
    if len(rates) > 1:
        first, second = (statistics.median(each) for each in rates.values())
        print(f"ratio {first / second:.2f}")
    return rates


if __name__ == "__main__":
    main()
