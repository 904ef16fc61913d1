"""Show how a config's TRANSFORMS run: what is fused, what falls back, and its cost.

    sslengine explain config=quickstart/simclr
    sslengine explain config=quickstart/dino --picture views.png
    sslengine explain config=pretrain/swav/swav_64gpu_resnet50 \\
        config.DATA.AUGMENT_BACKEND=pil --count 64

Times are CPU time of one thread, over images of the config's data; if these cannot be read, over
generated JPEGs of 500 x 375 pixels, with a note. The picture has a row for each image: the image as
read, then its views as the network gets them, before normalisation.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from sslengine.command.arguments import (
    CONFIG_DIR,
    JSON,
    TRUST_CONFIG,
    Argument,
    expect_writable,
    keep_apart,
    make_parser,
    print_document,
)
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.progress import progress
from sslengine.screen_console import LiteralConsole
from sslengine.trust import closed

if TYPE_CHECKING:
    from sslengine.data.augment.transform import Sample
    from sslengine.data.loading.dataset import SSLDataset
    from sslengine.data.sources.base import DataSource

WIDTH, HEIGHT, QUALITY = 500, 375, 90  # of generated JPEGs
SMALL, LARGE = 96, 160  # smallest and largest side of the largest view in the picture
GAP, LINE = 6, 14  # pixels between two views, and height of a text line
LEAST_WIDTH, BEHIND = 44, (176, 176, 176)  # of a column; background on which white is visible
AT_LEAST = 8  # default number of views of an image in the picture
ARGUMENTS = (
    Argument("overrides", "config=NAME and changes", metavar="KEY=VALUE", nargs="+"),
    CONFIG_DIR,
    Argument("--split", choices=("TRAIN", "TEST"), default="TRAIN"),
    Argument("--count", "images to time", int, "N", 32, least=1),
    Argument("--picture", "write the views here", Path, "FILE"),
    Argument("--images", "rows of the picture", int, "M", 6, least=1),
    Argument("--views", "of each image in the picture (at least 8)", int, "N", least=1),
    TRUST_CONFIG,
    JSON,
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser(__name__).parse_intermixed_args(arguments)
    if given.picture:
        expect_writable(given.picture, "--picture")
    import torch

    from sslengine.data.decode.decoding import save_image

    torch.set_num_threads(1)
    console = LiteralConsole(width_of_file=120, stderr=given.json)
    run = open_named(given.overrides, given.config_dir, given.trust_config)
    data = read(run.config, DataOptions)
    with tempfile.TemporaryDirectory() as folder, closed(run.opened):
        with keep_apart(given.json):
            count = max(given.count, given.images)
            split = open_split(data, given.split, Path(folder), count)
            found = {"name": f"{run.name}, {given.split}", "backend": data.AUGMENT_BACKEND}
            found |= measure(split, given.count)
        if given.json:
            print_document(found)
        else:
            show(found, console)
        if given.picture:
            with progress(f"drawing {given.picture}"):
                save_image(draw(split.dataset, given.images, given.views), given.picture)
            console.print(f"picture: {given.picture}", soft_wrap=True)
    return 0


# ---- images


class ExplainedSplit(NamedTuple):
    """What is explained: the TRANSFORMS of a split."""

    dataset: SSLDataset
    note: str = ""  # where the images come from, if not from the config's data


def open_split(data: DataOptions, split: str, folder: Path, count: int) -> ExplainedSplit:
    """Open a split. folder: for `count` generated images, if the config's cannot be read."""
    from sslengine.data.batch.collators import image_keys
    from sslengine.data.loading.dataset import SSLDataset
    from sslengine.registry import COLLATORS

    options: SplitOptions = getattr(data, split)
    if not options.TRANSFORMS:
        raise ConfigError(f"config.DATA.{split}.TRANSFORMS is empty: there is nothing to explain.")
    keys = image_keys(COLLATORS.get(options.COLLATE_FUNCTION))
    how: dict[str, Any] = {"backend": data.AUGMENT_BACKEND, "image_keys": keys}
    try:
        dataset = SSLDataset(options, split, 0, **how)
        for number in range(min(count, len(dataset))):
            _make_sample(dataset, number, _as_read)
    except (SSLEngineError, OSError) as error:
        write_jpegs(folder, count)
        sources = max(1, len(options.DATA_SOURCES))
        options = replace(
            options, DATA_SOURCES=["disk_folder"] * sources, DATA_PATHS=[str(folder)] * sources,
            LABEL_SOURCES=[], LABEL_TYPE="sample_index", DATA_LIMIT=-1, COPY_TO_LOCAL_DISK=False,
        )  # fmt: skip
        why = str(error).partition("\n")[0]
        note = f"generated JPEGs of {WIDTH} x {HEIGHT}, for the config's cannot be read: {why}"
        return ExplainedSplit(SSLDataset(options, split, 0, **how), note)
    return ExplainedSplit(dataset)


def write_jpegs(folder: Path, count: int) -> None:
    """Draw shapes with the noise of a camera."""
    from sslengine.data.sources.generated import draw_shape

    top = (WIDTH - HEIGHT) // 2
    for number in range(count):
        pixels = draw_shape("TRAIN", number, WIDTH)[top : top + HEIGHT].astype(np.int16)
        noise = np.random.default_rng(number).integers(-6, 7, pixels.shape, np.int16)
        noisy = (pixels + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:04}.jpg", quality=QUALITY)


def _as_read(source: DataSource, row: int) -> Image.Image:
    return source.image(row)


def _make_sample(
    dataset: SSLDataset, number: int, read_by: Callable[[DataSource, int], Any], epoch: int = 0
) -> Sample:
    """Return the input of TRANSFORMS, seeded; `number` may exceed the number of images."""
    from sslengine.data.seeding import seed_sample

    index = number % len(dataset)
    seed_sample(0, (epoch, number))
    rest = {"data_valid": 1, "data_idx": index, "label": 0}
    return {
        "data": [read_by(source, int(dataset.rows[index])) for source in dataset.sources],
        **{key: [value] * len(dataset.sources) for key, value in rest.items()},
    }


# ---- cost in milliseconds per image


def time_steps(dataset: SSLDataset, count: int) -> tuple[float, dict[str, float]]:
    """Return the time of reading, and that of each step by its `where`."""
    reading, costs = 0.0, {step.where: 0.0 for step in dataset.pipeline.steps}
    for number in range(count):
        began = process_time()
        sample = _make_sample(dataset, number, dataset.read)
        reading += process_time() - began
        for step in dataset.pipeline.steps:
            began = process_time()
            step(sample)
            costs[step.where] += process_time() - began
    return 1e3 * reading / count, {where: 1e3 * cost / count for where, cost in costs.items()}


def measure(split: ExplainedSplit, count: int) -> dict[str, Any]:
    """Return what is shown, and printed as JSON."""
    from sslengine.data.augment.pipeline import explain

    dataset = split.dataset
    dataset.pipeline(_make_sample(dataset, 0, dataset.read))  # what the first image alone makes
    with progress(f"timing each transform on {count} images"):
        reading, alone = time_steps(dataset, count)
    whole = reading + sum(alone.values())
    return {
        "images": count, "read_ms": reading,
        "transforms": [
            {
                "transform": where.partition("(")[2].rstrip(")"), "becomes": what,
                # The first deferred step represents the pixels that leave the worker.
                "ms": alone.get(where),
            }
            for where, what in explain(dataset.pipeline).items()
        ],
        "whole_ms": whole, "notes": [*_summarise(split, count, whole)],
    }  # fmt: skip


def _summarise(split: ExplainedSplit, count: int, whole: float) -> Iterator[str]:
    if split.note:
        yield f"images: {split.note}"
    yield f"ms: CPU time of one thread for an image with all its views, mean of {count}"
    backend = split.dataset.backend.name
    yield f"as a whole with the back-end {backend}: {whole:.2f} ms in the worker"
    waits = split.dataset.pipeline.cut.waits
    yield f"images leave the workers {'as uint8' if waits else 'unfinished'}"


def show(found: dict[str, Any], console: LiteralConsole) -> None:
    """Print the table and the notes."""
    from rich.table import Table

    table = Table("", "transform", "what becomes of it", "ms", title=found["name"])
    table.columns[-1].justify = "right"
    table.add_row("", "", "read and decoded", f"{found['read_ms']:.2f}")
    for number, part in enumerate(found["transforms"]):
        time = "" if part["ms"] is None else f"{part['ms']:.2f}"
        table.add_row(str(number), part["transform"], part["becomes"], time)
    console.print(table)
    for line in found["notes"]:
        console.print(line)


# ---- the picture


def draw(dataset: SSLDataset, images: int, views: int | None) -> Image.Image:
    """Draw a row for each image; views keep their relative sizes."""
    rows = [draw_views(dataset, number, views) for number in range(images)]
    largest = max(max(view.size) for row in rows for view in row)
    factor = min(LARGE / largest, max(1, -(-SMALL // largest)))
    cell = round(factor * largest)
    kind = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
    table = [
        [
            ImageOps.contain(_make_sample(dataset, number, _as_read)["data"][0], (cell, cell)),
            *(view.resize([round(factor * side) for side in view.size], kind) for view in row),
        ]
        for number, row in enumerate(rows)
    ]
    # Each column is as wide as its widest view.
    widths = [max(LEAST_WIDTH, *(view.width for view in column)) for column in zip(*table)]
    lefts = list(itertools.accumulate((width + GAP for width in widths), initial=GAP))
    tops = [GAP + LINE + number * (cell + GAP) for number in range(images + 1)]
    sheet = Image.new("RGB", (lefts[-1], tops[-1]), BEHIND)
    text, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for column, left in enumerate(lefts[:-1]):
        text.text((left, 2), f"view {column}" if column else "as read", "black", font)
        for top, row in zip(tops, table):
            sheet.paste(row[column], (left, top))
    return sheet


def draw_views(dataset: SSLDataset, number: int, wanted: int | None) -> list[Image.Image]:
    """Return so many views of one image, drawn as in successive epochs."""
    from sslengine.data.augment.tensors import pictures_of

    found: list[Image.Image] = []
    for epoch in itertools.count():
        if len(found) >= (wanted or AT_LEAST):
            break
        sample = dataset.pipeline(_make_sample(dataset, number, dataset.read, epoch))
        images = dataset.pipeline.finished(sample)["data"]
        found += [view for image in images for view in pictures_of(image, dataset.pipeline)]
    return found[:wanted]
