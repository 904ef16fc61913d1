"""The expected names of patterns are those of the package braceexpand 0.1.7."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import split_options
from sslengine.data.sources import tar
from sslengine.data.sources.tar import ShardError, TarSource, expand_pattern, find_shards
from sslengine.errors import DataError
from tests.data.pictures import picture


def png(number: int) -> bytes:
    file = io.BytesIO()
    picture(number).save(file, "PNG")
    return file.getvalue()


def write_shard(path: Path, members: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def shards(path: Path | str, **keys: object) -> TarSource:
    return TarSource(split_options(DATA_PATHS=[str(path)], **keys), "TRAIN")  # type: ignore[arg-type]


def numbers(source: TarSource) -> list[int]:
    """Which pictures they are."""
    known = {picture(number).tobytes(): number for number in range(10)}
    return [known[source.image(index).tobytes()] for index in range(len(source))]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for shard in range(3):
        members = {}
        for number in range(3 * shard, 3 * shard + 3):
            members |= {f"{number:04}.cls": b"%d\n" % (number % 2), f"{number:04}.png": png(number)}
        write_shard(tmp_path / f"train-{shard:03}.tar", members)
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "train-*.tar", "train-00{0,1,2}.tar"])
def test_all_shards_in_order_at_random(
    three: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar, "OPEN_SHARDS", 2)
    source = shards(three / pattern)
    assert numbers(source) == list(range(9))
    assert [source.encoded(index) for index in (0, 4, 8, 1, 7)] == [png(n) for n in (0, 4, 8, 1, 7)]
    assert len(source._open) == 2
    assert source.labels().tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert (source.label(3), source.num_classes) == (1, 2)
    assert source.path(4) == f"0004.png in {three / 'train-001.tar'}"
    assert numbers(pickle.loads(pickle.dumps(source))) == list(range(9))  # in a worker


def test_labels_in_json_and_none(tmp_path: Path) -> None:
    members = {}
    for number, name in enumerate(("dog", "ant", "dog")):
        told = {"label": number + 5, "kind": name}
        members |= {f"{number}.png": png(number), f"{number}.json": json.dumps(told).encode()}
    write_shard(tmp_path / "0.tar", members)
    assert shards(tmp_path).labels().tolist() == [5, 6, 7]
    assert shards(tmp_path, LABEL_COLUMN="kind").labels().tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"3 of 3 images.* 0.png in .* none .*'age'"):
        shards(tmp_path, LABEL_COLUMN="age").labels()


def test_samples_are_told_apart_as_webdataset_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By folder and name up to the first dot; of several images the one that is asked for."""
    members = {
        "a.b/1.seg.png": png(1),
        "a.b/1.PNG": png(0),
        "a.b/1.txt": b"words",
        "c/1.png": png(2),
        "c/.hidden.png": b"",
        "c/notes.txt": b"no image",
    }
    write_shard(tmp_path / "0.tar", members)
    assert numbers(shards(tmp_path)) == [0, 2]
    assert "the sample of c/notes.txt has no image" in caplog.text
    assert numbers(shards(tmp_path, IMAGE_COLUMN="seg.png")) == [1]
    with pytest.raises(DataError, match="IMAGE_COLUMN"):
        shards(tmp_path, IMAGE_COLUMN="webp")


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_kinds_of_tar_and_long_names(tmp_path: Path, kind: int) -> None:
    long = "folder/" * 12 + "x" * 60
    write_shard(tmp_path / "0.tar", {f"{long}{n}.png": png(n) for n in range(3)}, kind)
    source = shards(tmp_path)
    assert numbers(source) == [0, 1, 2]
    assert source.path(2).startswith(f"{long}2.png in")


def test_a_shard_that_is_cut_off_later(three: Path) -> None:
    options = split_options(DATA_SOURCES=["webdataset"], DATA_PATHS=[str(three)], LABEL_TYPE="zero")
    data = SSLDataset(options, "TRAIN", 0)
    os.truncate(three / "train-002.tar", 2000)
    assert [data[0, index]["data_idx"] == [index] for index in (5, 8)] == [True, False]
    assert "0008.png in " in data.why_unreadable(8)
    assert "EOFError: the shard ends within it" in data.why_unreadable(8)


# --- what a stranger's shard may hold

PNG = b"of an image"
DEEP = b'{"label": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("members", "at"),
    [
        ({"a.cls": b"\xff\xfe", "a.png": PNG}, "a.cls"),
        ({"a.cls": b"1" * (tar.LARGEST_LABEL + 1), "a.png": PNG}, "a.cls"),
        ({"a.json": DEEP, "a.png": PNG}, "a.json"),
        ({"a.json": b"\xff", "a.png": PNG}, "a.json"),
        ({"a.json": b"[1]", "a.png": PNG}, "a.json"),
        ({"a.json": b'{"label": [[1]]}', "a.png": PNG}, "a.json"),
        ({"a.png": PNG, "a.PNG": PNG}, "a.PNG"),
        ({"\x1b[2J.cls": b"\xff", "\x1b[2J.png": PNG}, r"\x1b[2J.cls"),
    ],
)
def test_a_member_that_is_wrong_is_named(
    tmp_path: Path, members: dict[str, bytes], at: str
) -> None:
    shard = write_shard(tmp_path / "0.tar", members)
    with pytest.raises(ShardError) as raised:
        shards(shard)
    assert f"DATA_PATHS.0: {shard}: {at}" in str(raised.value)


def _claiming(path: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    """A shard whose first member says that it has 5 GiB: holes, in a file without them."""
    with path.open("wb") as file:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, 5 * 2**30
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(file.tell() + info.size)
    with path.open("ab") as file, tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.png")
        info.size = len(PNG)
        archive.addfile(info, io.BytesIO(PNG))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("a.cls", tarfile.REGTYPE, r"a.cls has 5,368,709,120 bytes"),
        ("b.png", tarfile.REGTYPE, r"b.png has 5,368,709,120 bytes"),
        ("a", tarfile.GNUTYPE_LONGNAME, "a header of 5,368,709,"),
        ("a", tarfile.XHDTYPE, "a header of 5,368,709,"),
    ],
)
def test_members_of_any_size_take_no_memory(
    tmp_path: Path, name: str, kind: bytes, told: str
) -> None:
    with pytest.raises(ShardError, match=told):
        shards(_claiming(tmp_path / "0.tar", name, kind))


def test_a_shard_that_is_cut_off_or_none(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "0.tar", {"a.cls": b"1", "a.png": PNG * 1000})
    content = shard.read_bytes()
    damaged = content[:1024] + b"x" * 512 + content[1536:]  # tarfile takes it for the end
    cut = [content[:size] for size in (300, 700, 1200, 3000, 9000)]
    for each in (
        *cut,
        damaged,
        gzip.compress(content),
        b"",
        b"no tar file" * 100,
        os.urandom(5000),
    ):
        shard.write_bytes(each)
        with pytest.raises(ShardError, match=r"0.tar.* not a whole tar file"):
            shards(shard)


# --- which shards


def test_no_shards(tmp_path: Path) -> None:
    for pattern in ("gone-{0..3}.tar", "*.tar", ""):
        with pytest.raises(DataError, match=r"DATA_PATHS.0: there is no shard"):
            shards(tmp_path / pattern)
    with pytest.raises(DataError, match=r"copies a folder of shards, not a pattern"):
        shards(tmp_path / "*.tar", COPY_TO_LOCAL_DISK=True, COPY_DESTINATION_DIR=str(tmp_path))


def test_a_pattern_that_means_nothing(three: Path) -> None:
    with pytest.raises(DataError, match=r"DATA_PATHS.0: t-\{0..9.tar is no pattern of shards"):
        shards("t-{0..9.tar")
    named = (three / "train-000.tar").rename(three / "train-{0.tar")
    assert numbers(shards(named)) == [0, 1, 2]  # a file that is called so


@pytest.mark.parametrize("name", ["val", "validation", "dev"])
def test_a_folder_gives_each_split_its_shards(three: Path, name: str) -> None:
    test = [str((three / "train-001.tar").rename(three / f"{name}-000.tar"))]
    train = [str(three / f"train-00{number}.tar") for number in (0, 2)]
    assert find_shards(str(three), "here") == train
    assert find_shards(str(three), "here", "TEST") == test
    (three / "data").mkdir()
    below = [str(Path(each).rename(three / "data" / Path(each).name)) for each in (*train, *test)]
    assert find_shards(str(three), "here") == below[:2]
    assert find_shards(str(three), "here", "TEST") == below[2:]
    Path(below[2]).unlink()
    assert find_shards(str(three), "here", "TEST") == below[:2]  # there are no others


@pytest.mark.parametrize(
    ("pattern", "names"),
    [  # "_" for no letters at all
        ('a', 'a'),
        ('t-{0..3}', 't-0 t-1 t-2 t-3'),
        ('t-{3..0}', 't-3 t-2 t-1 t-0'),
        ('{0..10..5}', '0 5 10'),
        ('{09..11}', '09 10 11'),
        ('{9..011}', '009 010 011'),
        ('{8..11}', '8 9 10 11'),
        ('{1..001}', '001'),
        ('{1..3..0}', '1 2 3'),
        ('x{a,b}y', 'xay xby'),
        ('x{a}y', 'x{a}y'),
        ('x{}y', 'x{}y'),
        ('{a,,b}', 'a _ b'),
        ('{1..a}', '{1..a}'),
        ('{{a,b},c}', 'a b c'),
        ('{a,{0..2}}z', 'az 0z 1z 2z'),
        ('{a,b}{0..1}', 'a0 a1 b0 b1'),
        ('{a},{b}', '{a},{b}'),
        ('{x{1,2}}', '{x1} {x2}'),
        ('/d/{train,val}-{00..01}.tar', '/d/train-00.tar /d/train-01.tar /d/val-00.tar /d/val-01.tar'),
        ('{a,b{c,d{e,f}}}g', 'ag bcg bdeg bdfg'),
    ],
)  # fmt: skip
def test_names_of_a_pattern(pattern: str, names: str) -> None:
    assert [each or "_" for each in expand_pattern(pattern, "here")] == names.split()


@pytest.mark.parametrize(
    "pattern",
    [
        "{a,b", "a}b", "x{0..2}{a", "{a,b}}", "{{a}", "}{",
        "{0..99999999999}", "{0..9}" * 7, "{a,b}" * 20, "{{0..900000},{0..900000}}",
        "{a," * 5000 + "b" + "}" * 5000, "{0.." + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_pattern(pattern: str) -> None:
    """Refused before more names are made than anybody has shards."""
    with pytest.raises(DataError, match="here: "):
        expand_pattern(pattern, "here")
