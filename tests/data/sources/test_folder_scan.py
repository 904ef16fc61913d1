from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from sslengine.data import index_cache
from sslengine.data.index_cache import Found
from sslengine.data.sources.folder_scan import NO_CLASS, find_images
from sslengine.errors import DataError


def strings(found: Found, name: str) -> list[str]:
    text, starts = found.arrays[name].tobytes(), found.arrays[f"{name}_starts"]
    return [os.fsdecode(text[a:b]) for a, b in pairwise(starts)]


def paths(found: Found) -> list[str]:
    return [os.fsdecode(path) for path in index_cache._in_memory(found).paths()]


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_in_the_order_of_torchvision(tmp_path: Path, seed: int) -> None:
    """Names that sort otherwise as strings than as paths: `a-b` before `a/b`."""
    draw = random.Random(seed)
    letters = ["a", "a-", "a.b", "A", "b", "é", "0", "10", "9"]
    names = {
        "/".join(draw.choice(letters) for _ in range(draw.randint(2, 5)))
        + draw.choice([".JPG", ".png"])
        for _ in range(60)
    }
    for name in sorted(names):
        if not any((tmp_path / parent).is_file() for parent in Path(name).parents):
            touch(tmp_path, name)
    for each in {name.split("/")[0] for name in names}:  # torchvision wants an image in each class
        touch(tmp_path, f"{each}/zz.png")
    found, oracle = find_images(tmp_path, (".jpg", ".png")), ImageFolder(str(tmp_path))
    assert [str(tmp_path / each) for each in paths(found)] == [s[0] for s in oracle.samples]
    assert found.arrays["labels"].tolist() == oracle.targets
    assert strings(found, "classes") == oracle.classes
    assert found.entries == len(oracle)


def test_stamps_of_all_folders_and_of_nothing_else(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/1.jpg", "c/readme", ".hidden/2.jpg")
    found = find_images(tmp_path, (".jpg",))
    paths = {os.path.relpath(os.fsdecode(each.path), tmp_path) for each in found.stamps}
    assert paths == {".", "a", "a/b", "c"}
    assert strings(found, "classes") == ["a", "c"]


def test_nothing_below(tmp_path: Path) -> None:
    found = find_images(tmp_path, (".jpg",))
    assert (found.entries, paths(found), found.arrays["labels"].tolist()) == (0, [], [])


def test_a_folder_named_like_an_image_and_links(tmp_path: Path) -> None:
    touch(tmp_path / "real", "x/1.jpg")
    root = touch(tmp_path / "root", "odd.jpg/2.jpg", "3.jpg")
    (root / "linked").symlink_to(tmp_path / "real" / "x")
    found = find_images(root, (".jpg",))
    assert paths(found) == ["3.jpg", "linked/1.jpg", "odd.jpg/2.jpg"]
    np.testing.assert_array_equal(found.arrays["labels"], [NO_CLASS, 0, 1])


def test_a_folder_that_cannot_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.jpg")

    def scandir(folder: str) -> None:
        raise PermissionError(f"not allowed: {folder}")

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"Cannot look into the folder .*not allowed"):
        find_images(tmp_path, (".jpg",))
