"""Show how a config's TRANSFORMS run: what is fused, what falls back, and its cost.

    sslengine explain config=quickstart/simclr
    sslengine explain config=quickstart/dino --picture views.png
    sslengine explain config=pretrain/swav/swav_64gpu_resnet50 \\
        config.DATA.AUGMENT_BACKEND=pil --count 64

Times are CPU time of one thread, over images of the config's data; if these cannot be read, over
generated images of 448 x 448 pixels, with a note. The picture has a row for each image: the image
as read, then its views as the network gets them, before normalisation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.progress import progress
from sslengine.screen_console import LiteralConsole
from sslengine.trust import closed

if TYPE_CHECKING:
    from sslengine.data.loading.dataset import SSLDataset

GENERATED = 448  # side of generated images
SMALL, LARGE = 96, 160  # smallest and largest side of the largest view in the picture
GAP, BEHIND = 6, (176, 176, 176)  # pixels between views; a background on which white is visible
AT_LEAST = 8  # default number of views of an image in the picture
ARGUMENTS = (
    Argument("overrides", "config=NAME and changes", metavar="KEY=VALUE", nargs="+"),
    args.CONFIG_DIR,
    Argument("--split", choices=("TRAIN", "TEST"), default="TRAIN"),
    Argument("--count", "images to time", int, "N", 32, least=1),
    Argument("--picture", "write the views here", Path, "FILE"),
    Argument("--images", "rows of the picture", int, "M", 6, least=1),
    Argument("--views", "of each image in the picture (at least 8)", int, "N", least=1),
    args.TRUST_CONFIG,
    args.JSON,
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = args.make_parser(__name__).parse_intermixed_args(arguments)
    if given.picture:
        args.expect_writable(given.picture, "--picture")
    import torch

    from sslengine.data.decode.decoding import save_image

    torch.set_num_threads(1)
    console = LiteralConsole(width_of_file=120, stderr=given.json)
    run = open_named(given.overrides, given.config_dir, given.trust_config)
    data = read(run.config, DataOptions)
    with closed(run.opened):
        with args.keep_apart(given.json):
            dataset, notes = open_split(data, given.split, max(given.count, given.images))
            found = {"name": f"{run.name}, {given.split}", "backend": data.AUGMENT_BACKEND}
            found |= measure(dataset, given.count, notes)
        if given.json:
            args.print_document(found)
        else:
            show(found, console)
        if given.picture:
            with progress(f"drawing {given.picture}"):
                save_image(draw(dataset, given.images, given.views), given.picture)
            console.print(f"picture: {given.picture}", soft_wrap=True)
    return 0


def open_split(data: DataOptions, split: str, count: int) -> tuple[SSLDataset, list[str]]:
    """Return the images of a split, and a note if they are generated."""
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
        for row in dataset.rows[:count]:
            for source in dataset.sources:
                source.image(int(row))
    except (SSLEngineError, OSError) as error:
        options = replace(
            options, DATA_SOURCES=["shapes"] * max(1, len(options.DATA_SOURCES)), DATA_PATHS=[],
            DEFAULT_GRAY_IMG_SIZE=GENERATED, LABEL_SOURCES=[], LABEL_TYPE="sample_index",
            DATA_LIMIT=-1, COPY_TO_LOCAL_DISK=False,
        )  # fmt: skip
        why = str(error).partition("\n")[0]
        note = f"images: generated, for the config's cannot be read: {why}"
        return SSLDataset(options, split, 0, **how), [note]
    return dataset, []


# ---- cost in milliseconds per image


def measure(dataset: SSLDataset, count: int, notes: Sequence[str]) -> dict[str, Any]:
    """Return what is shown, and printed as JSON."""
    from sslengine.data.augment.pipeline import explain

    dataset[0, 0]  # what the first image alone makes
    with progress(f"timing each transform on {count} images"):
        reading, alone = time_steps(dataset, count)
    whole = reading + sum(alone.values())
    leave = "as uint8" if dataset.pipeline.cut.waits else "unfinished"
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
        "whole_ms": whole,
        "notes": [
            *notes,
            f"ms: CPU time of one thread for an image with all its views, mean of {count}",
            f"as a whole with the back-end {dataset.backend.name}: {whole:.2f} ms in the worker",
            f"images leave the workers {leave}",
        ],
    }  # fmt: skip


def time_steps(dataset: SSLDataset, count: int) -> tuple[float, dict[str, float]]:
    """Return the time of reading, and that of each step by its `where`."""
    from sslengine.data.seeding import seed_sample

    reading, costs = 0.0, {step.where: 0.0 for step in dataset.pipeline.steps}
    for number in range(count):
        index = number % len(dataset)
        seed_sample(0, (0, number))
        began = process_time()
        images = [dataset.read(source, int(dataset.rows[index])) for source in dataset.sources]
        reading += process_time() - began
        rest = {"data_valid": 1, "data_idx": index, "label": 0}
        sample = {"data": images, **{key: [each] * len(images) for key, each in rest.items()}}
        for step in dataset.pipeline.steps:
            began = process_time()
            step(sample)
            costs[step.where] += process_time() - began
    return 1e3 * reading / count, {where: 1e3 * cost / count for where, cost in costs.items()}


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
    numbers = [number % len(dataset) for number in range(images)]
    rows = [draw_views(dataset, number, views) for number in numbers]
    largest = max(max(view.size) for row in rows for view in row)
    factor = min(LARGE / largest, max(1, -(-SMALL // largest)))
    kind = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
    cell = round(factor * largest) + GAP
    size = (GAP + cell * (1 + max(map(len, rows))), GAP + cell * images)
    sheet = Image.new("RGB", size, BEHIND)
    for top, (number, row) in enumerate(zip(numbers, rows)):
        original = dataset.sources[0].image(int(dataset.rows[number]))
        shown = [ImageOps.contain(original, (cell - GAP, cell - GAP))]
        shown += [view.resize([round(factor * side) for side in view.size], kind) for view in row]
        for left, each in enumerate(shown):
            sheet.paste(each, (GAP + cell * left, GAP + cell * top))
    return sheet


def draw_views(dataset: SSLDataset, number: int, wanted: int | None) -> list[Image.Image]:
    """Return so many views of one image, drawn as in successive epochs."""
    from sslengine.data.augment.tensors import pictures_of

    found: list[Image.Image] = []
    for epoch in itertools.count():
        if len(found) >= (wanted or AT_LEAST):
            break
        for image in dataset[epoch, number]["data"]:
            found += pictures_of(image, dataset.pipeline)
    return found[:wanted]
