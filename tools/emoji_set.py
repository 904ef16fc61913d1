#!/usr/bin/env python3
"""Make a folder of labelled images of npm's emoji-datasource-google: 64 pixels, ten categories.

    npm pack emoji-datasource-google@16.0.0 && tar xzf emoji-datasource-google-16.0.0.tgz
    python tools/emoji_set.py package runs/emoji

3,786 drawings: 2,711 in `train`, 1,075 in `val`, a folder for each category. All skin tones of an
emoji are on one side; emoji go to `val` in the order of the CRC-32 of their code until it is full.
train.csv and val.csv list them with the columns path, label, emoji; all skin tones are one emoji.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

VALIDATION = 1075


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="the folder `package` of the archive")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--validation", type=int, default=VALIDATION, help="images in `val`")
    given = parser.parse_args(arguments)
    if not (given.package / "emoji.json").is_file():
        parser.error(f"{given.package} has no emoji.json: give the folder `package`")
    if given.out.exists():
        parser.error(f"{given.out} exists: give a new folder")
    print(*(f"{split}: {count} images" for split, count in split_into(given).items()), sep="\n")
    return 0


def split_into(given: argparse.Namespace) -> dict[str, int]:
    """Copy the images; returns how many are in each split."""
    counts = {"train": 0, "val": 0}
    rows: dict[str, list[tuple[str, str, str]]] = {split: [] for split in counts}
    emoji = json.loads((given.package / "emoji.json").read_text(encoding="utf-8"))
    for each in sorted(emoji, key=lambda each: zlib.crc32(each["unified"].encode())):
        split = "val" if counts["val"] < given.validation else "train"
        category = each["category"].lower().replace(" & ", "_").replace(" ", "_")
        folder = given.out / split / category
        folder.mkdir(parents=True, exist_ok=True)
        for name in _images(each):
            if (path := given.package / "img" / "google" / "64" / name).exists():
                shutil.copy(path, folder / name)
                counts[split] += 1
                rows[split].append((f"{split}/{category}/{name}", category, each["unified"]))
    for split, listed in rows.items():
        with (given.out / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "label", "emoji"), *listed])
    return counts


def _images(emoji: dict[str, Any]) -> list[str]:
    variations: dict[str, Any] = emoji.get("skin_variations", {})
    return [emoji["image"], *(each["image"] for each in variations.values())]


if __name__ == "__main__":
    main()
