"""Photos of several sizes, and the config of a run on them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.command.arguments import make_parser
from sslengine.command.train import choose
from sslengine.launch.cli import resolve_all

SMALL = ["--size", "32", "--epochs", "1", "--workers", "0", "--device", "cpu"]


def write_photos(root: Path, each: int = 8) -> Path:
    """Of two classes, which their brightness tells apart."""
    draw = np.random.default_rng(0)
    for level, name in ((40, "dark"), (200, "light")):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(level - 40, level + 40, (40 + 3 * number, 52, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


def write_table(file: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    """A .csv, or a .parquet by pyarrow."""
    if file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([names, *rows])
    else:
        arrow = pytest.importorskip("pyarrow")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), file)
    return file


def config_of(*arguments: str) -> Any:
    """What `sslengine train` would run."""
    chosen, _ = choose(make_parser("sslengine.command.train").parse_args(arguments))
    (run,) = resolve_all(chosen, [], True)
    return run.config
