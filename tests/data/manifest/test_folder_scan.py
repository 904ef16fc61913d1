from __future__ import annotations

import os
import random
import socket
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from sslengine.data.manifest import index
from sslengine.data.manifest.folder_scan import NO_CLASS, find_images
from sslengine.data.manifest.index import FoundImages
from sslengine.errors import DataError


def strings(found: FoundImages, name: str) -> list[str]:
    text, starts = found.arrays[name].tobytes(), found.arrays[f"{name}_starts"]
    return [os.fsdecode(text[a:b]) for a, b in pairwise(starts)]


def paths(found: FoundImages) -> list[str]:
    return [os.fsdecode(path) for path in index.ImageTable.share(found).strings("paths")]


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
    touch(tmp_path, "__MACOSX/a/._1.jpg", "a/@eaDir/1.jpg/thumb.jpg", "a/._1.jpg", "#recycle/3.jpg")
    found = find_images(tmp_path, (".jpg",))
    stamped = {os.path.relpath(os.fsdecode(each.path), tmp_path) for each in found.stamps}
    assert stamped == {".", "a", "a/b", "c"}
    assert strings(found, "classes") == ["a", "c"]
    assert paths(found) == ["a/b/1.jpg"]


def test_a_folder_named_like_an_image_and_links(tmp_path: Path) -> None:
    touch(tmp_path / "real", "x/1.jpg")
    root = touch(tmp_path / "root", "odd.jpg/2.jpg", "3.jpg")
    (root / "linked").symlink_to(tmp_path / "real" / "x")
    found = find_images(root, (".jpg",))
    assert paths(found) == ["3.jpg", "linked/1.jpg", "odd.jpg/2.jpg"]
    np.testing.assert_array_equal(found.arrays["labels"], [NO_CLASS, 0, 1])


def test_what_is_no_regular_file_is_passed_over_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loader worker would wait for whoever writes to a FIFO, and read a device for ever."""
    touch(tmp_path, "a/1.png", "a/x.png")
    os.mkfifo(tmp_path / "a" / "2.png")
    (tmp_path / "a" / "3.png").symlink_to("/dev/zero")
    (tmp_path / "a" / "4.png").symlink_to("x.png")
    (tmp_path / "a" / "5.png").symlink_to("nowhere")  # counted where it cannot be read
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "a")  # for the path of a socket may not be long
        server.bind("6.png")
        assert paths(find_images(tmp_path, (".png",))) == [
            f"a/{name}.png" for name in ("1", "4", "5", "x")
        ]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}: passed over: {tmp_path}/a/2.png (a FIFO), {tmp_path}/a/3.png (a device), "
        f"{tmp_path}/a/6.png (a socket)"
    )


def test_links_to_a_folder_that_they_lie_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them make 2^40 folders of one, before the system says that there are too many."""
    touch(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "here").symlink_to(".")
    (tmp_path / "c").symlink_to("b")  # a link to another folder is followed
    found = find_images(tmp_path, (".png",))
    assert paths(found) == ["a/1.png", "b/2.png", "c/2.png"]
    assert strings(found, "classes") == ["a", "b", "c"]
    assert "a/here (a link to a folder that it lies in)" in caplog.text
    assert "a/up (a link to a folder that it lies in)" in caplog.text


def test_links_that_are_no_loop_and_make_as_many_folders(tmp_path: Path) -> None:
    for number in range(40):
        folder = touch(tmp_path, f"{number}/image.png") / str(number)
        for name in ("left", "right"):
            (folder / name).symlink_to(tmp_path / str(number + 1))
    with pytest.raises(DataError, match="links lead to this folder in more than 4096 ways"):
        find_images(tmp_path / "0", (".png",))
