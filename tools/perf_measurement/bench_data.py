#!/usr/bin/env python3
"""What it costs to make the views of an image, beside other ways to make them.

    python tools/perf_measurement/bench_data.py

CPU time for an image of one core, from the bytes of a JPEG file to what leaves a loader worker:
the plain list of PIL transforms, the same list with each back-end that is installed,
the transforms of lightly where it is installed, torchvision pipelines as solo-learn composes them
and as torchvision advises today (v2, on uint8 tensors), and decoding alone. (PIRL's list has its
back-ends alone.) They take turns over the same few images within one process, and the
median of the rounds counts. Then the images that two workers deliver through the engine's loader
in a second, by the clock.
"""

from __future__ import annotations

import importlib.util
import io
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageFilter
from torchvision import transforms as v1
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness
from harness import Times

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.facts import ALWAYS_THERE, FAST, why_not
from sslengine.data.augment.backend import build_backend
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import Counterpart
from sslengine.data.decode.decoding import Decoder
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, split_options

Views = Callable[[bytes], Any]  # of an encoded image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DECODER = Decoder("images", 10**9, exif_rotation=False)
TURN = 10  # images
WORKERS, BATCH, BATCHES = 2, 32, 24
IN_HAND = 2 * WORKERS  # batches that workers prepare ahead
AFTER_CROP: list[dict[str, Any]] = [
    {"name": "RandomHorizontalFlip", "p": 0.5},
    {"name": "ImgPilColorDistortion", "strength": 1.0},
    {"name": "ImgPilGaussianBlur", "p": 0.5, "radius_min": 0.1, "radius_max": 2.0},
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": list(MEAN), "std": list(STD)},
]
CROPS = {
    "simclr": [(2, 224, (0.08, 1.0))],
    "multicrop": [(2, 224, (0.14, 1.0)), (6, 96, (0.05, 0.14))],
}
LISTS: dict[str, list[dict[str, Any]]] = {
    "simclr": [
        {"name": "ImgReplicatePil", "num_times": 2},
        {"name": "RandomResizedCrop", "size": 224, "scale": [0.08, 1.0]},
        *AFTER_CROP,
    ],
    "multicrop": [
        {"name": "ImgPilToMultiCrop", "total_num_crops": 8, "num_crops": [2, 6],
         "size_crops": [224, 96], "crop_scales": [[0.14, 1.0], [0.05, 0.14]]},
        *AFTER_CROP,
    ],
    "pirl": [
        {"name": "ImgPilToPatchesAndImage", "crop_scale_image": [0.08, 1.0],
         "crop_size_image": 224, "crop_scale_patches": [0.6, 1.0], "crop_size_patches": 255,
         "num_patches": 9},
        {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2},
        {"name": "ImgPilRandomPhotometric"},
        {"name": "RandomGrayscale", "p": 0.2},
        {"name": "RandomHorizontalFlip"},
        *AFTER_CROP[-2:],
    ],
}  # fmt: skip
COLLATORS = {
    "simclr": "simclr_collator",
    "multicrop": "multicrop_collator",
    "pirl": "patch_and_image_collator",
}


# ---- contestants: each is built for a case and gives the views of an encoded image


def plain_list(case: str) -> Views:
    steps = Pipeline(LISTS[case], "TRANSFORMS").named

    def views(encoded: bytes) -> Any:
        sample = _sample(DECODER(encoded))
        # torchvision's own transforms, also within others
        with patch.object(Counterpart, "__call__", lambda self, image: self.named(image)):
            for step in steps:
                step(sample)
        return sample["data"]

    return views


def engine(name: str) -> Callable[[str], Views]:
    def build(case: str) -> Views:
        pipeline = Pipeline(LISTS[case], "TRANSFORMS", image_keys=("data",))
        backend = build_backend(name)
        return lambda encoded: pipeline(_sample(backend.decode(encoded, DECODER)))["data"]

    return build


def _sample(image: Any) -> dict[str, list[Any]]:
    return {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}


def _open(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded), formats=["JPEG"]).convert("RGB")


def lightly(case: str) -> Views:
    from lightly.transforms import SimCLRTransform, SwaVTransform

    transform = SimCLRTransform() if case == "simclr" else SwaVTransform()
    return lambda encoded: transform(_open(encoded))


def _pil_blur(image: Image.Image) -> Image.Image:
    """Blur as solo-learn has it."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def solo_learn(case: str) -> Views:
    each = [
        v1.Compose([
            v1.RandomResizedCrop(side, scale=scale, interpolation=v1.InterpolationMode.BICUBIC),
            v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([v1.Lambda(_pil_blur)], p=0.5),
            v1.RandomHorizontalFlip(p=0.5),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ])
        for count, side, scale in CROPS[case]
        for _ in range(count)
    ]  # fmt: skip
    return lambda encoded: [transform(image) for image in [_open(encoded)] for transform in each]


def torchvision_v2(case: str) -> Views:
    each = [
        v2.Compose([
            v2.RandomResizedCrop(side, scale=scale, antialias=True),
            v2.RandomHorizontalFlip(p=0.5),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(side // 20 * 2 + 1, (0.1, 2.0))], p=0.5),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ])
        for count, side, scale in CROPS[case]
        for _ in range(count)
    ]  # fmt: skip
    read = v2.functional.pil_to_tensor
    return lambda encoded: [t(image) for image in [read(_open(encoded))] for t in each]


def decode(backend: str) -> Callable[[str], Views]:
    return lambda case: lambda encoded: build_backend(backend).decode(encoded, DECODER)


REFERENCE = "list"


def contestants(case: str) -> dict[str, Callable[[str], Views]]:
    """Return those that are installed and have the case."""
    backends = [name for name in (ALWAYS_THERE, FAST) if not why_not(name)]
    others = {"solo-learn": solo_learn, "torchvision v2": torchvision_v2}
    if importlib.util.find_spec("lightly") and importlib.util.find_spec("lightning_utilities"):
        others["lightly"] = lightly
    return {
        REFERENCE: plain_list,
        **{f"engine, {name}": engine(name) for name in backends},
        **(others if case in CROPS else {}),
        f"decode, {backends[-1]}": decode(backends[-1]),
    }


# ---- CPU time of an image, and images a second by the clock


def cpu_times(
    case: str, chosen: dict[str, Callable[[str], Views]], images: Sequence[bytes], rounds: int
) -> Times:
    """Return seconds for an image, by round. A round goes through all images, ten at a time."""
    built = {name: build(case) for name, build in chosen.items()}
    turns = -(-len(images) // TURN)

    def timed(views: Views) -> Callable[[int], float]:
        def measure(turn: int) -> float:
            start = turn % turns * TURN
            _seed(turn)
            began = time.process_time()
            for encoded in images[start : start + TURN]:
                views(encoded)
            return time.process_time() - began

        return measure

    for views in built.values():
        views(images[0])
    times = harness.take_turns(
        {name: timed(views) for name, views in built.items()}, rounds * turns
    )
    return {
        name: [sum(each[n * turns : (n + 1) * turns]) / len(images) for n in range(rounds)]
        for name, each in times.items()
    }


def _seed(number: int) -> None:
    """All draw from the same streams. The list and the engine make the same views."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def wall_rates(case: str, images: Sequence[bytes], rounds: int, backends: Sequence[str]) -> Times:
    """Return images a second from two workers: an epoch, without its first batches."""
    with tempfile.TemporaryDirectory(prefix="bench_data_") as folder:
        harness.write_images(folder, images, BATCHES * BATCH)
        feeds = {name: _feed(case, folder, name) for name in backends}
        rates = harness.take_turns(
            {name: lambda epoch, feed=feed: _rate(feed, epoch) for name, feed in feeds.items()},  # type: ignore[misc]
            rounds,
        )
        for feed in feeds.values():
            feed.close()
    return rates


def _feed(case: str, folder: str, backend: str) -> DataFeed:
    split = split_options(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[folder], LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=BATCH, TRANSFORMS=LISTS[case], COLLATE_FUNCTION=COLLATORS[case],
        CACHE_INDEX=False,
    )  # fmt: skip
    options = DataOptions(
        TRAIN=split, NUM_DATALOADER_WORKERS=WORKERS, PIN_MEMORY=False, AUGMENT_BACKEND=backend
    )
    return DataFeed(options, "TRAIN", training=True, seed=0)


def _rate(feed: DataFeed, epoch: int) -> float:
    batches = feed.batches(epoch)
    for _ in range(IN_HAND):  # they are made while nobody asks
        next(batches)
    began = time.perf_counter()
    left = sum(1 for _ in batches)
    return BATCH * left / (time.perf_counter() - began)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    known = list(contestants("simclr"))
    parser = harness.parser(__doc__)
    parser.add_argument("--case", choices=LISTS, nargs="+", default=list(LISTS))
    parser.add_argument("--only", choices=known, nargs="+", default=known)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-wall", action="store_true", help="CPU time alone")
    parser.add_argument("--json", type=Path, help="write all times here")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    images = harness.make_images(options.images)
    size = statistics.mean(map(len, images)) / 1000
    print(f"{harness.machine()}: {len(images)} images, {size:.0f} KB each on average")
    results: dict[str, Any] = {"kilobytes": size}
    for case in options.case:
        wanted = {REFERENCE, *options.only}
        chosen = {name: build for name, build in contestants(case).items() if name in wanted}
        times = cpu_times(case, chosen, images, options.rounds)
        ratios = harness.ratios(times, REFERENCE)
        print(f"{case}: CPU time for an image, one core")
        for name, ratio in ratios.items():
            seconds = statistics.median(times[name])
            print(f"  {name:<16}{1e3 * seconds:>9.2f} ms{1 / seconds:>8.0f} /s{ratio:>8.2f} x")
        results[case] = {"cpu": times, "ratio": ratios}
        backends = [name.removeprefix("engine, ") for name in chosen if name.startswith("engine, ")]
        if not options.no_wall and backends:
            rates = results[case]["wall"] = wall_rates(case, images, options.rounds, backends)
            for name, each in rates.items():
                print(f"  {WORKERS} workers, {name:<8}{statistics.median(each):>8.0f} images/s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    main()
