"""Look at this machine, or at images, before training; or at a run: has it collapsed, and why?

    sslengine doctor
    sslengine doctor ~/photos
    sslengine doctor ~/photos --all          open every image, not 200 of them
    sslengine doctor runs/mine               the folder of a run, complete or not

It exits with 1 if an image cannot be read, or if the run has collapsed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from sslengine import __version__
from sslengine.command import columns, documents
from sslengine.errors import ConfigError, listing
from sslengine.progress import progress
from sslengine.registry import import_dotted
from sslengine.screen import say

# What each optional package is for.
OPTIONAL = {
    "numba": "augmentations several times as fast (pip install 'sslengine[fast]')",
    "simplejpeg": "decoding JPEGs faster (pip install 'sslengine[fast]')",
    "pyarrow": ".parquet tables (pip install 'sslengine[tables]')",
    "datasets": "Hugging Face datasets (pip install 'sslengine[tables]')",
    "tifffile": "TIFFs of many bands (pip install 'sslengine[tiff]')",
    "imagecodecs": "the same, LZW and other compressions (pip install 'sslengine[tiff]')",
    "av": "videos (pip install 'sslengine[video]')",
    "onnxscript": "export --to onnx (pip install 'sslengine[export]')",
    "submitit": "SLURM (pip install 'sslengine[slurm]')",
    "tensorboard": "the writer of that name (pip install 'sslengine[tensorboard]')",
}
LOOKED_AT = 200
SMALL_SET, SMALL_CLASS, UNEVEN, TINY_SIDE = 5000, 10, 10, 64
ROTATED = "by EXIF, as phones do: read as stored; --set DATA.TRAIN.EXIF_ROTATION=true turns them"
SHOWN_ON = "pixels are seen on white; --set DATA.TRAIN.TRANSPARENT=black, another colour, or drop"
COPIES = "pixels of another image opened: to KoLeo and contrastive losses copies are two images"
SHARED = Path("/dev/shm")


COLLAPSED = "signs of collapse"


class Finding(NamedTuple):
    what: str
    value: Any
    advice: str = ""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine doctor", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="images, as for `sslengine train`; or a run"
    )
    parser.add_argument("--all", action="store_true", help="open every image")
    columns.add_columns(parser)
    documents.add_json(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """1 if something would keep a run from starting, or images cannot be read."""
    given = make_parser().parse_args(arguments)
    folder = Path(given.data or "").expanduser()
    if given.data and _is_run(folder):
        found = list(of_run(folder))
    else:
        said = columns.of_split(given.image_column, given.label_column).get
        found = list(of_images(given.data, given.all, said) if given.data else of_machine())
    if given.json:
        documents.show([each._asdict() for each in found])
    else:
        say("\n".join(_lines(found)), sys.stdout)
    return int(any(each.what in ("unreadable", COLLAPSED) and each.value for each in found))


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    width = max(len(each.what) for each in found)
    for each in found:
        yield f"{each.what:{width}}  {each.value}"
        if each.advice:
            yield f"{'':{width}}  {each.advice}"


def _is_run(folder: Path) -> bool:
    """A folder of images may have another program's config.yaml."""
    if not (folder / "config.yaml").is_file():
        return False
    with suppress(ConfigError):
        return bool(import_dotted("sslengine.config.plain_file:read_plain")(folder / "config.yaml"))
    return (folder / "metrics.jsonl").is_file()


def of_machine() -> Iterator[Finding]:
    found = import_dotted("sslengine.command.machine:look")()
    import torch

    yield Finding("sslengine", __version__)
    yield Finding("torch", torch.__version__)
    yield Finding("computes on", str(found), _no_gpu() if found.device == "cpu" else "")
    device = torch.device({"gpu": "cuda"}.get(found.device, found.device))
    precision = import_dotted("sslengine.precision:best")(device)
    yield Finding("precision auto", f"{precision}{' with TF32' if precision == 'bf16' else ''}")
    yield Finding("workers", found.workers)
    yield from _room()
    for name, use in OPTIONAL.items():
        there = _version(name)
        yield Finding(name, there or "not installed", "" if there else f"for {use}")


def _no_gpu() -> str:
    import torch

    return "torch finds no GPU." if torch.version.cuda else "This torch is built without CUDA."


def _room() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding("free disk here", f"{free:.1f} GiB", "little for checkpoints" if free < 5 else "")
    if SHARED.is_dir():
        size = shutil.disk_usage(SHARED).total / 2**30
        small = "loader workers send batches through it: docker run --shm-size=8g"
        yield Finding(str(SHARED), f"{size:.1f} GiB", small if size < 1 else "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def of_run(folder: Path) -> Iterator[Finding]:
    has_metrics = (folder / "metrics.jsonl").is_file()
    rows = import_dotted("sslengine.monitor.history:read")(folder, None) if has_metrics else []
    config = import_dotted("sslengine.config.plain_file:read_plain")(folder / "config.yaml")[0]
    rules = import_dotted("sslengine.monitor.collapse:findings")
    ends = import_dotted("sslengine.monitor.collapse:ends_of_phases")(rows)
    found = list(rules(ends, config["config"]))
    for name, value in ends[-1].items() if ends else ():
        yield Finding(name, f"{value:.4g}")
    yield from (Finding(*each) for each in found)
    yield Finding("train phases", len(ends), "" if ends else _no_phase(has_metrics))
    yield Finding(COLLAPSED, len(found))


def _no_phase(has_metrics: bool) -> str:
    return "none has ended yet" if has_metrics else "there is no metrics.jsonl yet"


def of_images(given: str, every: bool, said: Callable[[str], Any]) -> Iterator[Finding]:
    found = import_dotted("sslengine.command.images:look")(given, said)
    count = len(found.source)
    few = (
        f"fewer than {SMALL_SET}: start from trained weights (--recipe METHOD/continued "
        f"--pretrained), or train for more epochs"
    )
    yield Finding("read by", found.name)
    yield Finding("images", count, few if count < SMALL_SET else "")
    if found.name == "disk_folder":
        yield from _other_files(found.path, (".npy",) if found.only_stored else ())
    bands = import_dotted("sslengine.command.bands:look")(found)
    if bands:
        yield Finding("pixels", str(bands))
        found = found.stored()
    if found.has_classes:
        yield from _classes(found.source)
    step = 1 if every else max(1, count // LOOKED_AT)
    yield from _pictures(found.source, range(0, count, step))


def _other_files(folder: Path, read: tuple[str, ...]) -> Iterator[Finding]:
    """Files in the folder that are not read, such as those of a phone, .heic."""
    suffixes = (*import_dotted("sslengine.data.sources.disk:IMAGE_SUFFIXES"), *read)
    is_hidden = import_dotted("sslengine.data.sources.folder_scan:is_hidden")
    others: Counter[str] = Counter()
    for _, inner, names in os.walk(folder):
        inner[:] = [each for each in inner if not is_hidden(each)]
        unread = (each for each in names if not each.lower().endswith(suffixes))
        others.update(Path(each).suffix.lower() or each for each in unread if not is_hidden(each))
    if others:
        kinds = listing((f"{each} ({number})" for each, number in others.most_common()), 5)
        yield Finding("other files", others.total(), f"not read: {kinds}")


def _classes(source: Any) -> Iterator[Finding]:
    labels = source.labels()
    yield Finding("classes", source.num_classes)
    if labels.ndim > 1:
        return
    sizes = Counter(labels.tolist())
    names = source.class_names or {number: str(number) for number in sizes}
    (most, high), (least, low) = sizes.most_common()[0], sizes.most_common()[-1]
    advice = ""
    if low < SMALL_CLASS:
        advice = f"of fewer than {SMALL_CLASS} images a class can hardly be judged"
    elif high > UNEVEN * low:
        advice = "uneven: judge by the mean over classes; CLASS samplers: docs/data.md"
    yield Finding("largest class", f"{names[most]}, {high} images")
    yield Finding("smallest class", f"{names[least]}, {low} images", advice)
    empty = [name for number, name in enumerate(source.class_names) if number not in sizes]
    if empty:
        yield Finding("empty classes", len(empty), f"no image: {listing(empty, 5)}")


def _pictures(source: Any, rows: Sequence[int]) -> Iterator[Finding]:
    sides: list[int] = []
    turned, orientation = 0, import_dotted("sslengine.data.decode.decoding:ORIENTATION")
    transparent, mark = 0, import_dotted("sslengine.data.decode.transparency:WAS_TRANSPARENT")
    found: Counter[int] = Counter()
    broken = [f"{file}: no image in it can be read" for file in source.left_out()]
    with progress("opening images", len(rows)) as step:
        for row in rows:
            try:
                image = source.image(row)
            except Exception as error:  # decoders raise many kinds
                broken.append(f"{source.path(row)}: {error}")
            else:
                sides.append(min(image.size if hasattr(image, "mode") else image.shape[:2]))
                found[hash(image.tobytes())] += 1
                transparent += mark in getattr(image, "info", ())
                turned += hasattr(image, "getexif") and image.getexif().get(orientation, 1) != 1
            step(1)
    yield Finding("opened", len(rows))
    example = f"the first is {broken[0]}" if broken else ""
    yield Finding("unreadable", len(broken), example)
    if copies := len(sides) - len(found):
        yield Finding("copies", copies, COPIES)
    if transparent:
        yield Finding("transparent", transparent, SHOWN_ON)
    if turned:
        yield Finding("rotated", turned, ROTATED)
    if sides:
        sides.sort()
        middle = sides[len(sides) // 2]
        small = (
            f"small: try --size {max(32, middle // 16 * 16)}; on a CPU --recipe METHOD/cpu"
            if middle < TINY_SIDE
            else ""
        )
        yield Finding("shorter side", f"{sides[0]} to {sides[-1]}, median {middle}", small)
