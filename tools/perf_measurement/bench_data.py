#!/usr/bin/env python3
"""What it costs to make the views of an image, beside other ways to make them.

    python tools/perf_measurement/bench_data.py

CPU time for an image of one core, from the bytes of a JPEG file to what leaves a loader worker:
the plain list of PIL transforms, the same list with each back-end that is installed,
the transforms of lightly where it is installed, torchvision pipelines as solo-learn composes them
and as torchvision advises today (v2, on uint8 tensors), and decoding alone. (PIRL's list stands
beside its back-ends alone.) They take turns over the same few images within one process, and the
median of the rounds counts: so a busy machine slows all of them alike. Then the images that two
workers deliver through the engine's loader in a second, by the clock.

The images are made: three octaves of smooth colour and a grain on top, chosen so that a JPEG of
500 x 375 pixels and quality 90 has the size that it has in ImageNet, about 79 KB; a quarter
stands upright. Photographs decode a little slower.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import random
import statistics
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
        {
            "name": "ImgPilToMultiCrop",
            "total_num_crops": 8,
            "num_crops": [2, 6],
            "size_crops": [224, 96],
            "crop_scales": [[0.14, 1.0], [0.05, 0.14]],
        },
        *AFTER_CROP,
    ],
    "pirl": [
        {
            "name": "ImgPilToPatchesAndImage",
            "crop_scale_image": [0.08, 1.0],
            "crop_size_image": 224,
            "crop_scale_patches": [0.6, 1.0],
            "crop_size_patches": 255,
            "num_patches": 9,
        },
        {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2},
        {"name": "ImgPilRandomPhotometric"},
        {"name": "RandomGrayscale", "p": 0.2},
        {"name": "RandomHorizontalFlip"},
        *AFTER_CROP[-2:],
    ],
}
COLLATORS = {
    "simclr": "simclr_collator",
    "multicrop": "multicrop_collator",
    "pirl": "patch_and_image_collator",
}


# ---- images


def make_images(count: int) -> list[bytes]:
    return [_jpeg(number) for number in range(count)]


def _jpeg(number: int) -> bytes:
    draw = np.random.default_rng(number)
    width, height = (375, 500) if number % 4 == 3 else (500, 375)
    pixels = np.full((height, width, 3), 120.0)
    for cells, strength in ((3, 70), (12, 35), (50, 16)):
        coarse = draw.normal(128, 50, (cells, cells, 3)).clip(0, 255).astype(np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        pixels += strength * (np.asarray(smooth, float) - 128) / 50
    pixels += draw.normal(0, draw.uniform(4, 17), (height, width, 1))  # grain: it has no colour
    encoded = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


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


def lightly(case: str) -> Views:
    from lightly.transforms import SimCLRTransform, SwaVTransform

    transform = SimCLRTransform() if case == "simclr" else SwaVTransform()
    return lambda encoded: transform(
        Image.open(io.BytesIO(encoded), formats=["JPEG"]).convert("RGB")
    )


class PilBlur:
    """As solo-learn has it."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def solo_learn(case: str) -> Views:
    each = [
        v1.Compose(
            [
                v1.RandomResizedCrop(side, scale=scale, interpolation=v1.InterpolationMode.BICUBIC),
                v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                v1.RandomGrayscale(p=0.2),
                v1.RandomApply([PilBlur()], p=0.5),
                v1.RandomHorizontalFlip(p=0.5),
                v1.ToTensor(),
                v1.Normalize(MEAN, STD),
            ]
        )
        for count, side, scale in CROPS[case]
        for _ in range(count)
    ]

    def views(encoded: bytes) -> list[Any]:
        image = Image.open(io.BytesIO(encoded), formats=["JPEG"]).convert("RGB")
        return [transform(image) for transform in each]

    return views


def torchvision_v2(case: str) -> Views:
    each = [
        v2.Compose(
            [
                v2.RandomResizedCrop(side, scale=scale, antialias=True),
                v2.RandomHorizontalFlip(p=0.5),
                v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                v2.RandomApply([v2.GaussianBlur(side // 20 * 2 + 1, (0.1, 2.0))], p=0.5),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )
        for count, side, scale in CROPS[case]
        for _ in range(count)
    ]

    def views(encoded: bytes) -> list[Any]:
        image = v2.functional.pil_to_tensor(
            Image.open(io.BytesIO(encoded), formats=["JPEG"]).convert("RGB")
        )
        return [transform(image) for transform in each]

    return views


def decode(backend: str) -> Callable[[str], Views]:
    return lambda case: lambda encoded: build_backend(backend).decode(encoded, DECODER)


REFERENCE = "list"


def contestants(case: str) -> dict[str, Callable[[str], Views]]:
    """Return those that are installed and have the case."""
    backends = [name for name in (ALWAYS_THERE, FAST) if not why_not(name)]
    others = {"solo-learn": solo_learn, "torchvision v2": torchvision_v2}
    if importlib.util.find_spec("lightly") and importlib.util.find_spec("lightning_utilities"):
        others["lightly"] = lightly
    fastest = "numba" if "numba" in backends else "pil"
    return {
        REFERENCE: plain_list,
        **{f"engine, {name}": engine(name) for name in backends},
        **(others if case in CROPS else {}),
        f"decode, {fastest}": decode(fastest),
    }


# ---- CPU time


def cpu_times(
    case: str, chosen: dict[str, Callable[[str], Views]], images: Sequence[bytes], rounds: int
) -> dict[str, list[float]]:
    """Seconds for an image, by round. A round goes through all images."""
    built = {name: build(case) for name, build in chosen.items()}
    for number, views in enumerate(built.values()):
        _seed(number)
        views(images[0])
    times: dict[str, list[float]] = {name: [] for name in built}
    for number in range(rounds):
        spent = dict.fromkeys(built, 0.0)
        for start in range(0, len(images), TURN):
            for name, views in built.items():
                _seed(number * len(images) + start)
                began = time.process_time()
                for encoded in images[start : start + TURN]:
                    views(encoded)
                spent[name] += time.process_time() - began
        for name in built:
            times[name].append(spent[name] / len(images))
    return times


def _seed(number: int) -> None:
    """All draw from the same streams. The list and the engine make the same views."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """How many times as fast as the list: the median of the rounds."""
    return {
        name: statistics.median(base / mine for base, mine in zip(times[REFERENCE], seconds))
        for name, seconds in times.items()
    }


def report(case: str, times: dict[str, list[float]]) -> str:
    lines = [f"{case}: CPU time for an image, one core"]
    for name, ratio in ratios(times).items():
        seconds = statistics.median(times[name])
        lines.append(f"  {name:<16}{1e3 * seconds:>9.2f} ms{1 / seconds:>8.0f} /s{ratio:>8.2f} x")
    return "\n".join(lines)


# ---- wall time


def wall_rates(
    case: str, images: Sequence[bytes], rounds: int, backends: Sequence[str]
) -> dict[str, list[float]]:
    """Images in a second from two workers, by round: an epoch, without its first batches."""
    rates: dict[str, list[float]] = {name: [] for name in backends}
    with tempfile.TemporaryDirectory(prefix="bench_data_") as folder:
        Path(folder, "a").mkdir()
        for number in range(BATCHES * BATCH):
            Path(folder, "a", f"{number:05}.jpg").write_bytes(images[number % len(images)])
        feeds = {name: _feed(case, folder, name) for name in backends}
        for epoch in range(rounds):
            for name, feed in feeds.items():
                rates[name].append(_rate(feed, epoch))
        for feed in feeds.values():
            feed.close()
    return rates


def _feed(case: str, folder: str, backend: str) -> DataFeed:
    split = split_options(
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[folder],
        LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=BATCH,
        TRANSFORMS=LISTS[case],
        COLLATE_FUNCTION=COLLATORS[case],
        CACHE_INDEX=False,
    )
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


# ---- the command


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    known = list(contestants("simclr"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=LISTS, nargs="+", default=list(LISTS))
    parser.add_argument("--only", choices=known, nargs="+", default=known)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-wall", action="store_true", help="CPU time alone")
    parser.add_argument("--json", type=Path, help="write all times here")
    options = parser.parse_args(arguments)
    if options.json and options.json.exists():
        parser.error(f"--json {options.json}: it is there already. Give another name.")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    images = make_images(options.images)
    size = statistics.mean(map(len, images)) / 1000
    print(f"{len(images)} images, {size:.0f} KB each on average")
    results: dict[str, Any] = {"kilobytes": size}
    for case in options.case:
        wanted = {REFERENCE, *options.only}
        chosen = {name: build for name, build in contestants(case).items() if name in wanted}
        backends = [name.removeprefix("engine, ") for name in chosen if name.startswith("engine, ")]
        times = cpu_times(case, chosen, images, options.rounds)
        print(report(case, times))
        results[case] = {"cpu": times, "ratio": ratios(times)}
        if not options.no_wall and backends:
            rates = results[case]["wall"] = wall_rates(case, images, options.rounds, backends)
            for name, each in rates.items():
                print(f"  {WORKERS} workers, {name:<8}{statistics.median(each):>8.0f} images/s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    main()
