"""What the benchmarks share: turns, ratios, rows in processes of their own, images, the machine."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

Times = dict[str, list[float]]


def parser(text: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, torch {torch.__version__}"


def take_turns(contestants: Mapping[str, Callable[[int], float]], rounds: int) -> Times:
    """Return what each measured in each round: a busy machine slows all of them alike."""
    times: Times = {name: [] for name in contestants}
    for number in range(rounds):
        for name, measure in contestants.items():
            times[name].append(measure(number))
    return times


def ratios(times: Times, reference: str) -> dict[str, float]:
    """Return how many times as fast as the reference each is: the median of the rounds."""
    return {
        name: statistics.median(base / mine for base, mine in zip(times[reference], each))
        for name, each in times.items()
    }


def child(file: str, arguments: Sequence[str], name: str, threads: int = 1) -> dict[str, float]:
    """Return what a process of its own prints in its last line: `file ARGUMENTS --row NAME`."""
    command = [sys.executable, str(Path(file).resolve()), *arguments, "--row", name]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}:\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_images(count: int) -> list[bytes]:
    """Make JPEGs of 500 x 375 with the size that they have in ImageNet, about 79 KB: three octaves
    of smooth colour and a grain on top. A quarter stands upright. Photographs decode slower."""
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


def write_images(folder: str | Path, images: Sequence[bytes], count: int) -> str:
    """Write so many files, a few images again and again, and return the folder."""
    inner = Path(folder, "images")
    inner.mkdir(parents=True)
    for number in range(count):
        (inner / f"{number:05}.jpg").write_bytes(images[number % len(images)])
    return str(folder)
