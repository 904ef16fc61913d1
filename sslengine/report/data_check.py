"""What a look at the images finds: classes, copies, sizes, files that cannot be read.

`sslengine doctor` prints it, and the page of a run has it as facts: one look, and one wording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sslengine.data.decode.decoding import ORIENTATION, WAS_TRANSPARENT
from sslengine.errors import listing
from sslengine.progress import progress
from sslengine.report.content import Fact
from sslengine.report.parts import Album, spread

SMALL_CLASS, UNEVEN, TINY_SIDE = 10, 10, 64
# What is odd about an image, and what that means.
COPIES, TRANSPARENT, ROTATED = "copies", "transparent", "rotated"
ODD = {
    COPIES: "pixels of another image opened: to KoLeo and contrastive losses copies are two images",
    TRANSPARENT: "pixels are seen on white; "
    "--set DATA.TRAIN.TRANSPARENT=black, another colour, or drop",
    ROTATED: "by EXIF, as phones do: read as stored; "
    "--set DATA.TRAIN.EXIF_ROTATION=true turns them",
}
LEAK = "what is scored on them says nothing of other images: take others for one of the splits"
# Images of a split that are opened for the facts: of large ones fewer, which takes seconds.
FEWEST, OPENED, PIXELS = 12, 500, 100_000_000
SHOWN = 8  # thumbnails of a fact
CALLED = {"TRAIN": "training images", "TEST": "test images"}


class Finding(NamedTuple):
    what: str
    value: Any
    advice: str = ""
    rows: Sequence[int] = ()  # of the source: images that show it


def check_classes(source: Any, labels: Any = None) -> Iterator[Finding]:
    """labels: of the images that count; by default of all."""
    labels = source.labels() if labels is None else labels
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


def open_images(source: Any, rows: Sequence[int]) -> tuple[list[Finding], dict[int, int]]:
    """Return what is found, and the first row of equal images by a hash of their pixels."""
    broken = [f"{file}: no image in it can be read" for file in source.left_out()]
    sides, pixels = list[int](), dict[int, int]()  # sides: the shorter one of each image
    odd: dict[str, list[tuple[int, ...]]] = {what: [] for what in ODD}
    with progress("opening images", len(rows)) as step:
        for row in rows:
            step(1)
            try:
                image = source.image(row)
            except Exception as error:  # decoders raise many kinds
                broken.append(f"{source.path(row)}: {error}")
                continue
            sides.append(min(image.size if hasattr(image, "mode") else image.shape[:2]))
            first = pixels.setdefault(hash(image.tobytes()), row)
            if first != row:
                odd[COPIES].append((row, first))
            if WAS_TRANSPARENT in getattr(image, "info", ()):
                odd[TRANSPARENT].append((row,))
            if hasattr(image, "getexif") and image.getexif().get(ORIENTATION, 1) != 1:
                odd[ROTATED].append((row,))
    found = [Finding("opened", len(rows))]
    found.append(Finding("unreadable", len(broken), f"the first is {broken[0]}" if broken else ""))
    for what, some in odd.items():
        if some:
            found.append(
                Finding(what, len(some), ODD[what], [row for each in some for row in each])
            )
    return [*found, *_describe_sides(sorted(sides))], pixels


def _describe_sides(sides: Sequence[int]) -> Iterator[Finding]:
    if sides:
        middle = sides[len(sides) // 2]
        small = f"small: try --size {max(32, middle // 16 * 16)}; on a CPU --recipe METHOD/cpu"
        value = f"{sides[0]} to {sides[-1]}, median {middle}"
        yield Finding("shorter side", value, small if middle < TINY_SIDE else "")


def choose_number(source: Any, rows: Any) -> int:
    """Choose how many images to open, by the size of the first one."""
    try:
        image = source.image(int(rows[0]))
    except Exception:  # decoders raise many kinds
        return OPENED
    height, width = image.size if hasattr(image, "mode") else image.shape[:2]
    return int(min(OPENED, max(FEWEST, PIXELS // (height * width))))


def find_facts(datasets: Mapping[str, Any], album: Album) -> list[Fact]:
    """Look at an SSLDataset for each split; thumbnails of the facts are added to the album."""
    facts, seen = list[Fact](), dict[str, dict[int, int]]()

    def add(split: str, what: str, found: Finding) -> None:
        value = f"{found.value:,}" if isinstance(found.value, int) else str(found.value)
        rows = np.asarray(datasets[split].rows)
        numbers = [int(np.flatnonzero(rows == row)[0]) for row in found.rows[:SHOWN]]
        thumbs = [album.add(split, datasets[split], number) for number in numbers]
        facts.append(Fact(what, value, found.advice, thumbs))

    for split, dataset in datasets.items():
        source, rows = dataset.sources[0], np.asarray(dataset.rows)
        some = spread(rows, choose_number(source, rows)).tolist()
        opened, seen[split] = open_images(source, some)
        classes = check_classes(source, source.labels()[rows]) if source.num_classes else ()
        add(split, CALLED[split], Finding("count", len(rows)))
        for each in (*classes, *opened):
            if split == "TEST" and each.what != "unreadable":
                each = each._replace(advice="")  # it is advice for training
            add(split, f"{CALLED[split]}: {each.what}", each)
    if len(seen) > 1:
        same = [row for pixels, row in seen["TEST"].items() if pixels in seen["TRAIN"]]
        leak = Finding("copies", len(same), LEAK if same else "", same)
        add("TEST", "test images that are training images", leak)
    return facts
