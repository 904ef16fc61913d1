"""Store smaller copies of images in a few large files, for the data source `image_cache`.

    sslengine make image-cache /data/imagenet/train /fast/train --side 256

Each image is scaled so that its shorter side is --side (none is enlarged), and stored as JPEG of
--quality, or with --raw as plain pixels: no decoding, 10 to 20 times the size. Training then uses
images that differ from the originals: crops have fewer pixels, and JPEG adds artefacts. The source
notes this in the log of each run.

Images of more than 8 bits need --pixel-range, with the values of PIXEL_RANGE in config.DATA: image,
type, [0, 4095], [1%, 99%].

If interrupted, the same command resumes. To use the cache:

    sslengine train /fast/train
    config.DATA.TRAIN.DATA_SOURCES=[image_cache] config.DATA.TRAIN.DATA_PATHS=[/fast/train]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from PIL import Image

from sslengine import catalog  # noqa: F401 - declares all names
from sslengine.atomic import whole_file, write_whole
from sslengine.command.images import look, there
from sslengine.data.decode.decoding import NarrowedError
from sslengine.data.decode.pixel_range import FORMS
from sslengine.data.loading.progress import Progress
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.image_cache import MANIFEST, PLAN, VERSION, part_name
from sslengine.errors import ConfigError, DataError, OutputError
from sslengine.registry import DATA_SOURCES

IN_A_PART = 1000


class Copies(NamedTuple):
    """How the images are stored."""

    side: int
    quality: int  # 0: plain pixels
    pixel_range: Any = ""
    transparent: str = "white"

    def words(self) -> str:
        kept = f"JPEG of quality {self.quality}" if self.quality else "plain pixels"
        shown = f", PIXEL_RANGE {self.pixel_range}" if self.pixel_range else ""
        return f"shorter side {self.side}, {kept}{shown}, TRANSPARENT {self.transparent}"

    def encode(self, image: Image.Image) -> bytes:
        scale = self.side / min(image.size)
        if scale < 1:
            size = [max(1, round(length * scale)) for length in image.size]
            image = image.resize((size[0], size[1]), Image.Resampling.BICUBIC)
        file = BytesIO()
        if self.quality:
            image.save(file, "JPEG", quality=self.quality)
        else:
            image.save(file, "PPM")
        return file.getvalue()


def make(source: DataSource, out: Path, copies: Copies, of: str, workers: int) -> dict[str, Any]:
    """Write all missing parts, then the index of parts. Returns the index."""
    plan = {
        "version": VERSION,
        "of": of,
        "changes": copies.words(),
        "images": len(source),
        "images_in_a_part": IN_A_PART,
        "names": _fingerprint(source),
    }
    _begin(out, plan)
    missing = [
        number
        for number in range(-(-len(source) // IN_A_PART))
        if not (out / f"{part_name(number)}.npy").exists()
    ]
    progress = Progress(f"caching {of}", total=len(source))
    done = len(source) - len(missing) * IN_A_PART
    work = partial(write_part, source, out, copies)
    with ProcessPoolExecutor(workers, get_context("forkserver")) as pool:
        for _ in pool.map(work, missing):
            done += IN_A_PART
            progress.tell(done, "images")
    return _finish(source, out, plan)


def write_part(source: DataSource, out: Path, copies: Copies, number: int) -> None:
    """Write the images of one part; its .npy comes last."""
    name = part_name(number)
    members = range(number * IN_A_PART, min(len(source), (number + 1) * IN_A_PART))
    starts, counts = [0], {"unreadable": 0, "not_resized": 0}
    with whole_file(out / f"{name}.bin") as file:
        for index in members:
            try:
                image = source.image(index)
                content = copies.encode(image)
                counts["not_resized"] += min(image.size) <= copies.side
            except NarrowedError as error:
                raise DataError(
                    f"{source.path(index)}: its values are of type {error.dtype}, from "
                    f"{error.low:g} to {error.high:g}, and the copies have 8 bits. PIXEL_RANGE "
                    f"says which are black and white: --pixel-range={FORMS}."
                ) from error
            except Exception:  # decoders raise many kinds
                content = b""
                counts["unreadable"] += 1
            file.write(content)
            starts.append(file.tell())
    write_whole(out / f"{name}.json", json.dumps(counts).encode())
    table = BytesIO()
    np.save(table, np.array(starts, np.int64))
    write_whole(out / f"{name}.npy", table.getvalue())


def _begin(out: Path, plan: dict[str, Any]) -> None:
    if (out / MANIFEST).exists():
        raise OutputError(f"{out} already has a complete cache. Name another folder.")
    if (out / PLAN).exists():
        begun = json.loads((out / PLAN).read_text())
        changed = [key for key in plan if begun.get(key) != plan[key]]
        if changed:
            raise OutputError(
                f"{out} was begun with other settings: {', '.join(changed)}. Remove it, or name "
                f"another folder."
            )
        return
    if out.exists() and any(out.iterdir()):
        raise OutputError(f"{out} is not empty, and holds no cache. Name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PLAN, json.dumps(plan, indent=2).encode())


def _finish(source: DataSource, out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    with suppress(DataError):  # it has none
        np.save(out / "labels.npy", source.labels())
    totals = {"unreadable": 0, "not_resized": 0}
    for file in out.glob("part-*.json"):
        for key, count in json.loads(file.read_text()).items():
            totals[key] += count
    manifest = {**plan, **totals, "classes": list(source.class_names)}
    write_whole(out / MANIFEST, json.dumps(manifest, indent=2).encode())
    return manifest


def _fingerprint(source: DataSource) -> str:
    """A hash of all image names: resuming with other images would mix two datasets."""
    names = hashlib.blake2b(digest_size=16)
    for index in range(len(source)):
        names.update(os.fsencode(source.path(index)) + b"\0")
    return names.hexdigest()


def copy(given: argparse.Namespace) -> list[str]:
    """What `sslengine make image-cache` does; the lines that it prints."""
    pixel_range: Any = yaml.safe_load(given.pixel_range)  # type: ignore[no-untyped-call]
    copies = Copies(given.side, 0 if given.raw else given.quality, pixel_range, given.transparent)
    name, place = (given.source, given.path) if given.source else _found(given.path)
    options = SplitOptions(
        DATA_SOURCES=[name], DATA_PATHS=[place], EXIF_ROTATION=given.exif_rotation,
        PIXEL_RANGE=pixel_range, TRANSPARENT=given.transparent,
    )  # fmt: skip
    for problem in options.check():
        raise ConfigError(problem)
    _expect_images(name, place)
    (source,) = build_sources(options, "TRAIN")
    told = make(source, given.out, copies, given.path, given.workers or os.cpu_count() or 1)
    return [
        f"{told['images']:,} images in {given.out}: {told['changes']}; "
        f"{told['not_resized']:,} were not larger, {told['unreadable']:,} could not be read",
        f"to use it: sslengine train {given.out}",
    ]


def _found(given: str) -> tuple[str, str]:
    """The source, and the value of DATA_PATHS."""
    images = look(given)
    if images.only_stored:
        raise ConfigError(f"{given}: a cache has copies of 8 bits, and images of .npy have none.")
    return images.name, images.place


def _expect_images(name: str, path: str) -> None:
    """Before the source is opened: what is not there was mistyped."""
    source = DATA_SOURCES.get(name, "SOURCE")
    if source.is_stream:
        raise ConfigError(
            f"{name}: a stream has no images by number, which a cache copies. Download it, and "
            f"name the source of files, such as webdataset."
        )
    if source.needs_path:
        there(path)
