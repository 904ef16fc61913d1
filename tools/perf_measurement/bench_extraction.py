#!/usr/bin/env python3
"""Images a second: read by the loader alone, computed by the network alone, and both, kept on disk.

    python tools/perf_measurement/bench_extraction.py                         # 2,000 made JPEGs
    python tools/perf_measurement/bench_extraction.py ~/photos --network resnet18 --device cuda
    python tools/perf_measurement/bench_extraction.py --rounds 3

A network of timm's is judged at 224 pixels. Features that are extracted, as `sslengine judge` does,
cost no more than the slower of reading and computing if these run at the same time: on a GPU the
loader, on a CPU, where they share the cores, both together. Rounds take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # found as a script, too
from sslengine import catalog
from sslengine.config.resolve import resolve
from sslengine.engine.build import build_base_model
from sslengine.engines.features import layers_of, ordered_feed
from sslengine.engines.run import Run
from sslengine.engines.stored import Network, store_split

assert catalog  # importing it declares all names

VIEW = (
    "[{name: Resize, size: 256}, {name: CenterCrop, size: 224}, {name: ToTensor},"
    " {name: Normalize, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}]"
)


def measure(given: argparse.Namespace, photos: Path) -> dict[str, list[float]]:
    """Images a second of each way and round."""
    run = _run(given, photos)
    compute = layers_of(build_base_model(run.config, run.device))
    ways: dict[str, Callable[[Path], int]] = {
        "loader": lambda _: _read(run),
        "network": lambda _: _compute(run, compute, given),
        "extraction": lambda folder: _extract(run, Network("network", compute, {}), folder),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                images = way(Path(folder))
                found[name].append(images / (time.perf_counter() - began))
    return found


def _run(given: argparse.Namespace, photos: Path) -> Run:
    train = "config.DATA.TRAIN"
    resolved = resolve([
        "config=quickstart/rotnet", f"{train}.DATA_SOURCES=[disk_folder]",
        f"{train}.DATA_PATHS=[{photos}]", f"{train}.TRANSFORMS={VIEW}", f"{train}.DATA_LIMIT=-1",
        f"{train}.LABEL_TYPE=sample_index", f"{train}.BATCHSIZE_PER_REPLICA={given.batch_size}",
        f"{train}.DROP_LAST=false", f"{train}.COLLATE_FUNCTION=default_collate",
        f"config.DATA.NUM_DATALOADER_WORKERS={given.workers}", "config.MODEL.TRUNK.NAME=timm",
        f"config.MODEL.TRUNK.TIMM.model={given.network}", "config.MODEL.HEAD.PARAMS=[]",
        f"config.MACHINE.DEVICE={'gpu' if given.device == 'cuda' else 'cpu'}",
    ])  # fmt: skip
    return Run(resolved, photos, torch.device(given.device))


def _read(run: Run) -> int:
    feed = ordered_feed(run.config, "TRAIN", run.device)
    try:
        return sum(len(batch["data_idx"][0]) for batch in feed.batches())
    finally:
        feed.close()


@torch.no_grad()
def _compute(run: Run, compute: Callable[..., object], given: argparse.Namespace) -> int:
    images = torch.randn(given.batch_size, 3, 224, 224, device=run.device)
    count = max(1, given.images // given.batch_size)
    for _ in range(count):
        compute(images)
    if run.device.type == "cuda":
        torch.cuda.synchronize()
    return count * given.batch_size


def _extract(run: Run, network: Network, folder: Path) -> int:
    stored = store_split(run, "TRAIN", [network], folder)
    return len(stored.stores["network"].indices)


def make_photos(folder: Path, count: int) -> Path:
    """JPEGs of 500 x 375 pixels: smooth colours with noise, which decode as photos do."""
    draw = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + draw.integers(-12, 13, smooth.shape)
        path = folder / f"{number:06d}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


def table(found: dict[str, list[float]]) -> str:
    middle = {name: statistics.median(each) for name, each in found.items()}
    lines = [
        f"{name:<12}{middle[name]:9.1f} images/s  ({min(each):.1f} to {max(each):.1f})"
        for name, each in found.items()
    ]
    one_by_one = 1 / (1 / middle["loader"] + 1 / middle["network"])
    slower = min(middle["loader"], middle["network"])
    return "\n".join([
        *lines,
        f"extraction / the slower of both: {middle['extraction'] / slower:.2f}",
        f"extraction / one after the other: {middle['extraction'] / one_by_one:.2f}",
    ])  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("photos", nargs="?", help="a folder of images; without it some are made")
    add("--images", type=int, default=2000, help="how many are made (%(default)s)")
    add("--network", default="resnet18", help="of timm's (%(default)s)")
    add("--batch-size", type=int, default=64, help="(%(default)s)")
    add("--workers", type=int, default=2, help="(%(default)s)")
    add("--threads", type=int, default=1, help="of the network on a CPU (%(default)s)")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--rounds", type=int, default=3, help="(%(default)s)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as made:
        photos = Path(given.photos or make_photos(Path(made), given.images))
        print(table(measure(given, photos)))


if __name__ == "__main__":
    main()
