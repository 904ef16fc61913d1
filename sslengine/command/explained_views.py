"""What `sslengine explain` shows: what becomes of a list of TRANSFORMS, and its views."""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from rich.table import Table

from sslengine import catalog
from sslengine.command import documents
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.data.augment.explain import explain, pictures_of, why_floats
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import image_keys
from sslengine.data.decode.decoding import save_image
from sslengine.data.loading.dataset import Samples, SSLDataset, collate_seeded
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.seeding import seed_sample
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.generated import draw_shape
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.progress import progress
from sslengine.registry import COLLATORS
from sslengine.screen_console import LiteralConsole
from sslengine.trust import closed

WIDTH, HEIGHT, QUALITY = 500, 375, 90  # of generated JPEGs
SEED, CPU = 0, torch.device("cpu")
SMALL, LARGE = 96, 160  # smallest and largest side of the largest view in the picture
GAP, LINE = 6, 14  # pixels between two views, and height of a text line
LEAST_WIDTH, BEHIND = 44, (176, 176, 176)  # of a column; background on which white is visible
AT_LEAST = 8  # default number of views of an image in the picture


@dataclass(frozen=True)
class Subject:
    """The split whose TRANSFORMS are explained."""

    options: SplitOptions
    dataset: SSLDataset
    pipeline: Pipeline
    readable: list[int]  # in the dataset, of as many as are looked at
    note: str = ""  # where the images come from, if not from the config's data

    @property
    def collator(self) -> Any:
        return COLLATORS.get(self.options.COLLATE_FUNCTION)

    def sample(self, number: int, read: Callable[[DataSource, int], Any]) -> Sample:
        """The input of TRANSFORMS; `number` may be larger than the number of images."""
        index = self.readable[number % len(self.readable)]
        row, sources = int(self.dataset.rows[index]), self.dataset.sources
        rest = {"data_valid": 1, "data_idx": index, "label": 0}
        return {
            "data": [read(source, row) for source in sources],
            **{key: [value] * len(sources) for key, value in rest.items()},
        }


# ---- reading


def open_subject(data: DataOptions, split: str, folder: Path, count: int) -> Subject:
    """folder: for `count` generated images, if those of the config cannot be read."""
    options: SplitOptions = getattr(data, split)
    where = f"config.DATA.{split}.TRANSFORMS"
    if not options.TRANSFORMS:
        raise ConfigError(f"{where} is empty: there is nothing to explain.")
    pipeline = Pipeline(options.TRANSFORMS, "TRANSFORMS")
    keys = image_keys(COLLATORS.get(options.COLLATE_FUNCTION))
    opened = partial(
        SSLDataset, split=split, seed=SEED, backend=data.AUGMENT_BACKEND, image_keys=keys
    )
    try:
        dataset = opened(options)
        readable, note = find_readable(dataset, count)
    except (SSLEngineError, OSError) as error:
        write_jpegs(folder, count)
        why = str(error).partition("\n")[0]
        note = f"generated JPEGs of {WIDTH} x {HEIGHT}, for the config's cannot be read: {why}"
        dataset = opened(_generated(options, folder))
        return Subject(options, dataset, pipeline, list(range(len(dataset))), note)
    return Subject(options, dataset, pipeline, readable, note)


def find_readable(dataset: SSLDataset, count: int) -> tuple[list[int], str]:
    """The first readable images, and a note about unreadable ones."""
    found: list[int] = []
    broken: list[int] = []
    for index in range(len(dataset)):
        row = int(dataset.rows[index])
        try:
            for source in dataset.sources:
                source.image(row)
        except Exception:  # decoders raise many kinds
            broken.append(index)
        else:
            found.append(index)
        if len(found) == count or (not found and len(broken) == count):
            break
    if not found:
        raise DataError(f"none of the first {len(broken)}, {dataset.why_unreadable(broken[0])}")
    left_out = f"{len(broken)} that cannot be read are left out, the first is "
    return found, left_out + dataset.why_unreadable(broken[0]) if broken else ""


def _generated(options: SplitOptions, folder: Path) -> SplitOptions:
    number = max(1, len(options.DATA_SOURCES))
    return replace(
        options,
        DATA_SOURCES=["disk_folder"] * number,
        DATA_PATHS=[str(folder)] * number,
        LABEL_SOURCES=[],
        LABEL_TYPE="sample_index",
        DATA_LIMIT=-1,
        COPY_TO_LOCAL_DISK=False,
    )


def write_jpegs(folder: Path, count: int) -> None:
    """Shapes with the noise of a camera."""
    top = (WIDTH - HEIGHT) // 2
    for number in range(count):
        pixels = draw_shape("TRAIN", number, WIDTH)[top : top + HEIGHT].astype(np.int16)
        noise = np.random.default_rng(number).integers(-6, 7, pixels.shape, np.int16)
        noisy = (pixels + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:04}.jpg", quality=QUALITY)


# ---- cost in milliseconds per image


def time_steps(subject: Subject, count: int) -> tuple[float, dict[str, float]]:
    """Return the time of reading, and that of each step by its `where`."""
    steps = subject.dataset.pipeline.steps
    reading, costs = 0.0, {step.where: 0.0 for step in steps}
    for number in range(count):
        seed_sample(SEED, (0, number))
        began = process_time()
        sample = subject.sample(number, subject.dataset.read)
        reading += process_time() - began
        for step in steps:
            began = process_time()
            step(sample)
            costs[step.where] += process_time() - began
    return 1e3 * reading / count, {where: 1e3 * cost / count for where, cost in costs.items()}


def time_whole(subject: Subject, count: int) -> dict[str, float]:
    """Return the times of the list and of the plain one, with reading; and of the part after
    collate."""
    dataset = subject.dataset
    began = process_time()
    samples = [_run(subject, number, dataset.pipeline, dataset.read) for number in range(count)]
    run = process_time() - began
    began = process_time()
    for number in range(count):
        _run(subject, number, subject.pipeline.run_plainly, _as_read)
    listed = process_time() - began
    dataset.pipeline.settle(samples)
    collate = COLLATORS.maker(
        subject.options.COLLATE_FUNCTION, subject.options.COLLATE_FUNCTION_PARAMS
    )
    batch = collate_seeded(collate, Samples(samples, SEED, [(0, 0)]))
    finish = dataset.finish_on(CPU)
    began = process_time()
    if finish is not None:
        finish.finish_batch(batch)
    times = {"list": run, "plain list": listed, "after collate": process_time() - began}
    return {name: 1e3 * seconds / count for name, seconds in times.items()}


def _run(
    subject: Subject,
    number: int,
    transform: Callable[[Sample], Sample],
    read: Callable[[DataSource, int], Any],
    epoch: int = 0,
) -> Sample:
    seed_sample(SEED, (epoch, number))
    return transform(subject.sample(number, read))


def measured(subject: Subject, name: str, backend: str, count: int) -> dict[str, Any]:
    """Return what is shown, and printed as JSON."""
    pipeline = subject.dataset.pipeline
    _run(subject, 0, pipeline, subject.dataset.read)  # what is made at the first image only
    with progress(f"timing each transform on {count} images", then="all of them together"):
        reading, alone = time_steps(subject, count)
    with progress(f"timing the whole list on {count} images"):
        whole = time_whole(subject, count)
    return {
        "name": name, "backend": backend, "images": count, "read_ms": reading,
        "transforms": [
            {
                "transform": part.where.partition("(")[2].rstrip(")"),
                "becomes": part.what, "why": part.why,
                # The first deferred step represents the pixels that leave the worker.
                "ms": alone.get(part.where),
            }
            for part in explain(pipeline)
        ],
        "whole_ms": whole, "notes": [*_summary(subject, backend, count, whole)],
    }  # fmt: skip


def show(found: dict[str, Any], console: LiteralConsole) -> None:
    table = Table("", "transform", "what becomes of it", "ms", title=found["name"])
    table.columns[-1].justify = "right"
    table.add_row("", "", "read and decoded", f"{found['read_ms']:.2f}")
    for number, part in enumerate(found["transforms"]):
        what = part["becomes"] + (f": {part['why']}" if part["why"] else "")
        time = "" if part["ms"] is None else f"{part['ms']:.2f}"
        table.add_row(str(number), part["transform"], what, time)
    console.print(table)
    for line in found["notes"]:
        console.print(line)


def _summary(subject: Subject, backend: str, count: int, whole: dict[str, float]) -> Iterator[str]:
    if subject.note:
        yield f"images: {subject.note}"
    yield (f"ms: CPU time of one thread for an image with all its views, mean of {count}")
    yield (
        f"as a whole with the back-end {backend}: {whole['list']:.2f} ms in the worker and "
        f"{whole['after collate']:.2f} ms after collate (on a CPU); the plain list: "
        f"{whole['plain list']:.2f} ms"
    )
    if subject.dataset.pipeline.cut.waits:
        yield "images leave the workers as uint8"
    else:
        keys = image_keys(subject.collator)
        yield f"images leave the workers unfinished: {why_floats(subject.pipeline.named, keys)}"


# ---- views


def views_of(subject: Subject, number: int, wanted: int | None) -> list[Image.Image]:
    """So many views of one image, drawn as in successive epochs."""
    found: list[Image.Image] = []
    epoch = 0
    while len(found) < (wanted or AT_LEAST):
        sample = _run(subject, number, subject.dataset.pipeline, subject.dataset.read, epoch)
        sample = subject.dataset.pipeline.finished(sample)
        found += [view for image in sample["data"] for view in pictures_of(image, subject.pipeline)]
        epoch += 1
    return found[:wanted]


def draw(subject: Subject, images: int, views: int | None) -> Image.Image:
    """A row for each image; views keep their relative sizes."""
    rows = [views_of(subject, number, views) for number in range(images)]
    largest = max(max(view.size) for row in rows for view in row)
    factor = min(LARGE / largest, max(1, math.ceil(SMALL / largest)))
    cell = round(factor * largest)
    table = []
    for number, row in enumerate(rows):
        read = subject.sample(number, _as_read)["data"][0]
        scaled = [_scaled(view, factor) for view in row]
        table.append([ImageOps.contain(read, (cell, cell)), *scaled])
    return _sheet(table, cell)


def _as_read(source: DataSource, row: int) -> Image.Image:
    return source.image(row)


def _sheet(table: list[list[Image.Image]], height: int) -> Image.Image:
    """Each column is as wide as its widest view. All rows have the same number of views."""
    widths = [max(LEAST_WIDTH, *(view.width for view in column)) for column in zip(*table)]
    lefts = list(itertools.accumulate((width + GAP for width in widths), initial=GAP))
    tops = [GAP + LINE + number * (height + GAP) for number in range(len(table) + 1)]
    sheet = Image.new("RGB", (lefts[-1], tops[-1]), BEHIND)
    text, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for column, left in enumerate(lefts[:-1]):
        text.text((left, 2), f"view {column}" if column else "as read", "black", font)
    for top, row in zip(tops, table):
        for left, view in zip(lefts, row):
            sheet.paste(view, (left, top))
    return sheet


def _scaled(view: Image.Image, factor: float) -> Image.Image:
    kind = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
    return view.resize((round(factor * view.width), round(factor * view.height)), kind)


def run(given: argparse.Namespace) -> int:
    assert catalog  # importing it declares all names
    console = LiteralConsole(width_of_file=120, stderr=given.json)
    torch.set_num_threads(1)
    run = open_named(given.overrides, given.config_dir, given.trust_config)
    data = read(run.config, DataOptions)
    with tempfile.TemporaryDirectory() as folder, closed(run.opened):
        name, backend = f"{run.name}, {given.split}", data.AUGMENT_BACKEND
        with documents.apart(given.json):
            subject = open_subject(data, given.split, Path(folder), max(given.count, given.images))
            found = measured(subject, name, backend, given.count)
        if given.json:
            documents.show(found)
        else:
            show(found, console)
        if given.picture:
            with progress(f"drawing {given.picture}"):
                save_image(draw(subject, given.images, given.views), given.picture)
            console.print(f"picture: {given.picture}", soft_wrap=True)
    return 0
