from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sslengine.data.sources.tar_samples import (
    LARGEST_IMAGE,
    LARGEST_LABEL,
    ShardError,
    TarReader,
)
from sslengine.errors import DataError

PNG = b"of an image"


def write(path: Path, members: Mapping[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            _add(tar, name, content)
    return str(path)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def read(shard: str, ending: str = "", label_key: str = "") -> list[tuple[str, object]]:
    found = TarReader(ending, label_key, "config.X").read(shard)
    return [(sample.name, sample.label) for sample in found]


def test_each_image_lies_where_it_is_said(tmp_path: Path) -> None:
    shard = write(tmp_path / "0.tar", {"1.cls": b"3", "1.png": PNG, "2.jpg": b"x", "3.txt": b""})
    samples = TarReader("", "", "config.X")
    one, two = samples.read(shard)
    assert Path(shard).read_bytes()[one.offset : one.offset + one.size] == PNG
    assert (one.name, one.label, two.name, two.label) == ("1.png", "3", "2.jpg", None)
    assert samples.without_image == 1


def test_endings_of_two_parts_are_those_of_webdataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The key ends at the first dot: a.left.png is `left.png` of the sample a."""
    members = {"a.left.png": PNG, "a.cls": b"1", "b.LEFT.png": PNG, "c.mask.png": PNG}
    shard = write(tmp_path / "0.tar", members)
    assert read(shard) == [("a.left.png", "1"), ("b.LEFT.png", None)]
    assert "taken are those that end in .left.png (IMAGE_COLUMN)" in caplog.text
    assert read(shard, "mask.png") == [("c.mask.png", None)]
    # Beside images of one part, others are masks, thumbnails and the like.
    shard = write(tmp_path / "1.tar", {"a.jpg": PNG, "a.seg.png": PNG, "b.seg.png": PNG})
    assert read(shard) == [("a.jpg", None)]
    shard = write(tmp_path / "2.tar", {"a.left.png": PNG, "a.right.png": PNG})
    with pytest.raises(
        ShardError, match=r"2.tar: a.left.png and a.right.png are .*IMAGE_COLUMN: le"
    ):
        read(shard)
    assert read(shard, ".right.png") == [("a.right.png", None)]


def test_which_members_are_images_depends_on_their_shard_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And not on what was read before, nor on which sample of the shard is the first."""
    deep = write(tmp_path / "0.tar", {"a.rgb.png": PNG, "b.rgb.png": PNG})
    plain = write(tmp_path / "1.tar", {"c.seg.png": PNG, "d.seg.png": PNG, "d.jpg": PNG})
    expected = {deep: ["a.rgb.png", "b.rgb.png"], plain: ["d.jpg"]}
    for order in ([deep, plain, deep], [plain, deep, plain]):
        samples = TarReader("", None, "config.X")
        found = [[sample.name for sample in samples.read(shard)] for shard in order]
        assert found == [expected[shard] for shard in order]
    assert caplog.text.count("taken are those that end in .rgb.png") == 2  # once by each
    assert caplog.text.count("1.tar: the sample of c.seg.png has no image (.jpg, .png or the") == 2


DEEP = b'{"label": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"a.cls": b"\xff\xfe", "a.png": PNG}, r"0.tar: a.cls is not UTF-8"),
        ({"a.cls": b"1" * (LARGEST_LABEL + 1), "a.png": PNG}, r"a.cls has 65,537 bytes; 65,536 are"),
        ({"a.json": DEEP, "a.png": PNG}, r"a.json does not hold a JSON object: maximum recursion"),
        ({"a.json": b"\xff", "a.png": PNG}, r"a.json is not UTF-8"),
        ({"a.json": b"[1]", "a.png": PNG}, r"a.json does not hold a JSON object: it is a list"),
        ({"a.json": b"{", "a.png": PNG}, r"a.json does not hold a JSON object: Expecting property"),
        ({"a.json": b'{"label": [[1]]}', "a.png": PNG}, r"a.json: 'label' is no text or number, but a l"),
        ({"a.json": b'{"label": {}}', "a.png": PNG}, r"a.json: 'label' is no text or number, but a d"),
        ({"a.png": PNG, "a.PNG": PNG}, r"0.tar: a.PNG is there twice in one sample: a.png"),
        ({"\x1b[2J.cls": b"\xff", "\x1b[2J.png": PNG}, r"0.tar: \\x1b\[2J.cls is not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_member(tmp_path: Path, members: dict[str, bytes], told: str) -> None:
    with pytest.raises(ShardError, match=told) as raised:
        read(write(tmp_path / "0.tar", members))
    assert isinstance(raised.value, DataError)
    assert str(raised.value).startswith(f"config.X: {tmp_path}/0.tar: ")


def _claiming(path: Path, name: str, size: int, kind: bytes = tarfile.REGTYPE) -> str:
    """A shard whose last member says that it has so many bytes: holes, in a file without them."""
    with path.open("wb") as file:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, size
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(file.tell() + size)
    return str(path)


def test_members_of_any_size_take_no_memory(tmp_path: Path) -> None:
    """5 GB of nothing: a label, an image, a name."""
    big = 5 * 2**30
    label = _claiming(tmp_path / "0.tar", "a.cls", big)
    with open(label, "ab") as file, tarfile.open(fileobj=file, mode="w") as tar:
        _add(tar, "a.png", PNG)
    for shard, told in (
        (label, r"a.cls has 5,368,709,120 bytes; 65,536 are the most"),
        (
            _claiming(tmp_path / "1.tar", "a.png", big),
            f"a.png has .*; {LARGEST_IMAGE:,} are the mo",
        ),
        (
            _claiming(tmp_path / "2.tar", "a", big, tarfile.GNUTYPE_LONGNAME),
            "a header of 5,368,709,",
        ),
        (_claiming(tmp_path / "3.tar", "a", big, tarfile.XHDTYPE), "a header of 5,368,709,"),
    ):
        with pytest.raises(ShardError, match=told):
            read(shard)


def test_a_shard_that_is_cut_off_or_none(tmp_path: Path) -> None:
    shard = write(tmp_path / "0.tar", {"a.cls": b"1", "a.png": PNG * 1000})
    content = Path(shard).read_bytes()
    damaged = content[:1024] + b"x" * 512 + content[1536:]  # tarfile takes it for the end
    for each in (*(content[:size] for size in (300, 700, 1200, 3000, 9000)), damaged):
        Path(shard).write_bytes(each)
        with pytest.raises(ShardError, match=r"0.tar.* not a whole tar file"):
            read(shard)
    for other in (b"", b"no tar file" * 100, os.urandom(5000), json.dumps({}).encode()):
        Path(shard).write_bytes(other)
        with pytest.raises(ShardError, match=r"0.tar is not a whole tar file"):
            read(shard)


def test_a_member_that_is_stored_with_holes(tmp_path: Path) -> None:
    """Its bytes do not lie one after the other."""
    info = tarfile.TarInfo("a.png")
    info.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "20",
        "GNU.sparse.name": "a.png",
    }  # fmt: skip
    content = b"1\n15\n5\n".ljust(512, b"\0") + b"bytes"
    info.size = len(content)
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(ShardError, match=r"a.png is stored with holes \(sparse\)"):
        read(str(tmp_path / "0.tar"))
