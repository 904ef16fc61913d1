"""Look at this machine, or at images, before training; or at a run: has it collapsed, and why?

    sslengine doctor
    sslengine doctor ~/photos
    sslengine doctor ~/photos --all          open every image, not 200 of them
    sslengine doctor runs/mine               the folder of a run, complete or not

It exits with 1 if an image cannot be read, or if the run has collapsed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sslengine import __version__
from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.command.data import look, split_keys
from sslengine.config.yaml_text import read_plain
from sslengine.errors import ConfigError, listing
from sslengine.report.data_check import Finding, check_classes, open_images
from sslengine.screen import say

# What each optional package is for.
OPTIONAL = {
    "numba": "augmentations several times as fast (pip install 'sslengine[fast]')",
    "simplejpeg": "decoding JPEGs faster (pip install 'sslengine[fast]')",
    "pyarrow": ".parquet tables (pip install 'sslengine[tables]')",
    "datasets": "Hugging Face datasets (pip install 'sslengine[tables]')",
    "tifffile": "TIFFs of many bands or more than 8 bits (pip install 'sslengine[tiff]')",
    "imagecodecs": "the same, LZW and other compressions (pip install 'sslengine[tiff]')",
    "av": "videos (pip install 'sslengine[video]')",
    "onnxscript": "export --to onnx (pip install 'sslengine[export]')",
    "submitit": "SLURM (pip install 'sslengine[slurm]')",
    "tensorboard": "the writer of that name (pip install 'sslengine[tensorboard]')",
}
LOOKED_AT = 200
SMALL_SET = 5000
SHARED = Path("/dev/shm")
COLLAPSED = "signs of collapse"


ARGUMENTS = (
    Argument("data", "images, as for `sslengine train`; or a run", metavar="DATA", nargs="?"),
    Argument("--all", "open every image", bool),
    args.IMAGE_COLUMN,
    args.LABEL_COLUMN,
    args.JSON,
)


def main(arguments: Sequence[str]) -> int:
    """Return 1 if something would keep a run from starting, or images cannot be read."""
    given = args.make_parser(__name__).parse_args(arguments)
    folder = Path(given.data or "").expanduser()
    if given.data and _is_run(folder):
        found = list(look_at_run(folder))
    else:
        said = split_keys(given.image_column, given.label_column).get
        found = list(
            look_at_images(given.data, given.all, said) if given.data else look_at_machine()
        )
    if given.json:
        args.print_document([each._asdict() for each in found])
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
        return bool(read_plain(folder / "config.yaml"))
    return (folder / "metrics.jsonl").is_file()


def look_at_machine() -> Iterator[Finding]:
    import torch

    from sslengine.command import machine
    from sslengine.precision import best

    found = machine.look()
    yield Finding("sslengine", __version__)
    yield Finding("torch", torch.__version__)
    cuda = "torch finds no GPU." if torch.version.cuda else "This torch is built without CUDA."
    yield Finding("computes on", str(found), cuda if found.device == "cpu" else "")
    device = torch.device({"gpu": "cuda"}.get(found.device, found.device))
    precision = best(device)
    yield Finding("precision auto", f"{precision}{' with TF32' if precision == 'bf16' else ''}")
    yield Finding("workers", found.workers)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding("free disk here", f"{free:.1f} GiB", "little for checkpoints" if free < 5 else "")
    if SHARED.is_dir():
        size = shutil.disk_usage(SHARED).total / 2**30
        small = "loader workers send batches through it: docker run --shm-size=8g"
        yield Finding(str(SHARED), f"{size:.1f} GiB", small if size < 1 else "")
    for name, use in OPTIONAL.items():
        try:
            yield Finding(name, version(name), "")
        except PackageNotFoundError:
            yield Finding(name, "not installed", f"for {use}")


def look_at_run(folder: Path) -> Iterator[Finding]:
    from sslengine.monitor.run_facts import read_facts
    from sslengine.monitor.verdict import judge_run

    facts = read_facts(folder)
    verdict = judge_run(facts)
    for name, value in facts.ends[-1].items() if facts.ends else ():
        yield Finding(name, f"{value:.4g}")
    yield from (Finding(*each) for each in facts.found)
    there = (folder / "metrics.jsonl").is_file()
    none = "none has ended yet" if there else "there is no metrics.jsonl yet"
    yield Finding("train phases", len(facts.ends), "" if facts.ends else none)
    yield Finding(COLLAPSED, len(facts.found))
    advice = " ".join(filter(None, (verdict.detail, verdict.command)))
    yield Finding("verdict", verdict.sentence, advice)


def look_at_images(given: str, every: bool, said: Callable[[str], Any]) -> Iterator[Finding]:
    from sslengine.command import bands

    found = look(given, said)
    count = len(found.source)
    few = (
        f"fewer than {SMALL_SET}: start from trained weights (--recipe METHOD/continued "
        f"--pretrained), or train for more epochs"
    )
    yield Finding("read by", found.name)
    yield Finding("images", count, few if count < SMALL_SET else "")
    if found.name == "disk_folder":
        yield from _other_files(Path(found.place), (".npy",) if found.only_stored else ())
    source, measured = found.source, bands.look(found)
    if measured:
        yield Finding("pixels", str(measured))
        source = found.open_stored()
    if found.has_classes:
        yield from check_classes(source)
    step = 1 if every else max(1, count // LOOKED_AT)
    yield from open_images(source, range(0, count, step))[0]


def _other_files(folder: Path, read: tuple[str, ...]) -> Iterator[Finding]:
    """Count files in the folder that are not read, such as those of a phone, .heic."""
    from sslengine.data.manifest.folder_scan import is_hidden
    from sslengine.data.sources.disk import IMAGE_SUFFIXES

    suffixes = (*IMAGE_SUFFIXES, *read)
    others: Counter[str] = Counter()
    for _, inner, names in os.walk(folder):
        inner[:] = [each for each in inner if not is_hidden(each)]
        unread = (each for each in names if not each.lower().endswith(suffixes))
        others.update(Path(each).suffix.lower() or each for each in unread if not is_hidden(each))
    if others:
        kinds = listing((f"{each} ({number})" for each, number in others.most_common()), 5)
        yield Finding("other files", others.total(), f"not read: {kinds}")
