"""Make a file of permutations for the jigsaw task (ShuffleImgPatches: perm_file).

    python extra_scripts/generate_jigsaw_permutations.py --count 2000 permutations_2000.npy

The same arguments make the same file on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslengine.data.augment.permutations import MOST_PIECES, Permutations, distinct_permutations


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip().splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="the .npy file to write")
    parser.add_argument(
        "--count", type=int, default=2000, help="number of permutations, which are the classes"
    )
    parser.add_argument(
        "--patches", type=int, default=9, help=f"patches of an image, at most {MOST_PIECES}"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the permutations")
    options = parser.parse_args(arguments)
    if options.file.suffix != ".npy":
        parser.error(f"expected a name that ends in .npy, got {options.file}")
    return options


def distances(permutations: Permutations) -> tuple[float, int]:
    """The number of places in which two permutations differ: the mean, and the least."""
    count, patches = permutations.shape
    nearest, total = patches, 0
    for number, each in enumerate(permutations[:-1], 1):
        different = (permutations[number:] != each).sum(1)
        nearest, total = min(nearest, int(different.min())), total + int(different.sum())
    pairs = count * (count - 1) // 2
    return total / max(1, pairs), nearest


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        permutations = distinct_permutations(options.count, options.patches, options.seed)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    options.file.parent.mkdir(parents=True, exist_ok=True)
    np.save(options.file, permutations)
    average, least = distances(permutations)
    print(
        f"{options.file}: {options.count} permutations of {options.patches} patches. Two differ "
        f"in {average:.2f} places on average, in {least} at least."
    )


if __name__ == "__main__":
    main()
