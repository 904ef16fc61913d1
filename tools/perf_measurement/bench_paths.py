#!/usr/bin/env python3
"""Memory of a data set of millions of files: all processes together, at most and in the end.

    python tools/perf_measurement/bench_paths.py --files 10000000 --workers 8

Makes a folder of a thousand small images and links to it, so that there are that many different
paths, and loads batches of it in random order, as `disk_folder` and as `disk_filelist`. Memory is
PSS (Linux): pages that several processes share are counted once. The same with a thousand files
says what the processes take themselves. Each measurement has processes of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness

from sslengine import catalog
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions

PER_FOLDER = 1000
BATCH = 256


def make_paths(root: Path, files: int) -> tuple[Path, Path]:
    """A folder with so many images below it, and a list of their paths."""
    (root / "one").mkdir()
    names = [f"picture_{number:06}.jpg" for number in range(min(files, PER_FOLDER))]
    for name in names:
        Image.new("RGB", (8, 8)).save(root / "one" / name)
    folder = root / "images"
    folder.mkdir()
    classes = [f"class_{number:06}" for number in range(max(1, files // PER_FOLDER))]
    for name in classes:
        (folder / name).symlink_to(root / "one")
    length = len(f"{folder}/{classes[0]}/{names[0]}")
    shape = (len(classes) * len(names),)
    paths = np.lib.format.open_memmap(root / "list.npy", "w+", f"S{length}", shape)
    for number, name in enumerate(classes):
        start = number * len(names)
        paths[start : start + len(names)] = [f"{folder}/{name}/{each}".encode() for each in names]
    return folder, root / "list.npy"


def memory(root: int) -> float:
    """MiB of a process and all below it."""
    parents, total = dict[int, int](), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
        with suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(map(int, re.findall(r"^Pss: +(\d+)", rollup, re.MULTILINE)))
    return total / 1024


def measured(source: str, path: Path, workers: int, batches: int) -> str:
    """By a process of its own: in one that has measured before, something of that would be left."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=load, args=(there, source, path, workers, batches))
    process.start()
    assert process.pid is not None
    most = 0.0
    while not here.poll(0.5):
        assert process.is_alive(), f"loading {source} failed"
        most = max(most, memory(process.pid))
    samples, opened = here.recv()
    now = memory(process.pid)
    here.send("enough")
    process.join()
    return (
        f"{source:14} {samples:>10,} files: opened in {opened:6.1f} s; "
        f"{max(most, now):6.0f} MiB at most, {now:6.0f} MiB while loading"
    )


def load(there: Connection, source: str, path: Path, workers: int, batches: int) -> None:
    assert catalog  # importing it declares all names
    split = SplitOptions(
        DATA_SOURCES=[source], DATA_PATHS=[str(path)], LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=BATCH, TRANSFORMS=[{"name": "ToTensor"}],
    )  # fmt: skip
    began = time.perf_counter()
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=workers)
    feed = DataFeed(options, "TRAIN", training=True, seed=0)
    opened = time.perf_counter() - began
    for _ in islice(feed.batches(), batches):
        pass
    there.send((feed.num_samples, opened))
    there.recv()
    feed.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--files", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batches", type=int, default=400)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.environ["SSLENGINE_CACHE"] = f"{folder}/cache"
        for files in dict.fromkeys((PER_FOLDER, options.files)):
            root = Path(folder) / str(files)
            root.mkdir()
            images, paths = make_paths(root, files)
            time.sleep(3)  # what has just been changed is not kept
            for source, path in (("disk_folder", images), ("disk_filelist", paths)):
                for start in ("first", "again"):
                    row = measured(source, path, options.workers, options.batches)
                    print(start, row, flush=True)


if __name__ == "__main__":
    main()
