"""The expected names are those of the package braceexpand 0.1.7."""

from __future__ import annotations

import glob
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
from sslengine.data.sources import tar_shards
from sslengine.data.sources.tar_shards import MOST_NAMES, TarSource, expand_pattern, find_shards
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


@pytest.mark.parametrize(
    "pattern", ["", "train-*.tar", "train-{000..002}.tar", "train-00{0,1,2}.tar"]
)
def test_all_shards_in_order_at_random(three: Path, pattern: str) -> None:
    source = shards(three / pattern)
    assert numbers(source) == list(range(9))
    assert source.labels().tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert (source.label(3), source.num_classes) == (1, 2)
    assert source.encoded(5) == png(5)
    assert source.path(4) == f"0004.png in {three / 'train-001.tar'}"


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


def test_samples_are_told_apart_as_webdataset_does(tmp_path: Path) -> None:
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
    assert numbers(shards(tmp_path, IMAGE_COLUMN="seg.png")) == [1]
    with pytest.raises(DataError, match=r"no image in 1 shards.*members that end in webp"):
        shards(tmp_path, IMAGE_COLUMN="webp")


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_kinds_of_tar_and_long_names(tmp_path: Path, kind: int) -> None:
    long = "folder/" * 12 + "x" * 60
    write_shard(tmp_path / "0.tar", {f"{long}{n}.png": png(n) for n in range(3)}, kind)
    source = shards(tmp_path)
    assert numbers(source) == [0, 1, 2]
    assert source.path(2).startswith(f"{long}2.png in")


def test_workers_read_shards_of_their_own(three: Path) -> None:
    source = shards(three)
    source.image(0)
    again = pickle.loads(pickle.dumps(source))
    assert numbers(again) == list(range(9))
    again.close()


def test_few_shards_are_open_at_once(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_shards, "OPEN_SHARDS", 2)
    source = shards(three)
    assert [source.encoded(index) for index in (0, 4, 8, 1, 7)] == [png(n) for n in (0, 4, 8, 1, 7)]
    assert len(source._open) == 2
    source.close()


def test_a_shard_that_is_cut_off_later(three: Path) -> None:
    options = split_options(DATA_SOURCES=["webdataset"], DATA_PATHS=[str(three)], LABEL_TYPE="zero")
    data = SSLDataset(options, "TRAIN", 0)
    shard = three / "train-002.tar"
    os.truncate(shard, 2000)
    assert [data[0, index]["data_idx"] == [index] for index in (5, 8)] == [True, False]
    assert "0008.png in " in data.why_unreadable(8)
    assert "EOFError: the shard ends within it" in data.why_unreadable(8)


def test_shards_that_are_not_whole(three: Path) -> None:
    shard = three / "train-001.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:700])
    with pytest.raises(DataError, match=r"train-001.tar is not a whole tar file: unexpected end"):
        shards(three)
    shard.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"train-001.tar is not a whole tar file.*gunzip"):
        shards(three)


@pytest.mark.parametrize("content", [b"no json", b"[1]"])
def test_json_that_is_none(tmp_path: Path, content: bytes) -> None:
    write_shard(tmp_path / "0.tar", {"0.png": png(0), "0.json": content})
    with pytest.raises(DataError, match=r"0.tar: 0.json does not hold a JSON object"):
        shards(tmp_path)


def test_no_shards(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no shard .*/gone-0.tar. Give a folder of .tar"):
        shards(tmp_path / "gone-{0..3}.tar")
    with pytest.raises(DataError, match=r"DATA_PATHS.0: there is no shard"):
        shards(tmp_path / "*.tar")
    with pytest.raises(DataError, match=r"DATA_PATHS.0: no file in the folder .* ends in .tar"):
        shards(tmp_path)
    with pytest.raises(DataError, match=r"copies a folder of shards, not a pattern"):
        shards(tmp_path / "*.tar", COPY_TO_LOCAL_DISK=True, COPY_DESTINATION_DIR=str(tmp_path))


def test_a_pattern_that_means_nothing(three: Path) -> None:
    with pytest.raises(
        DataError, match=r"DATA_PATHS.0: t-\{0..9.tar is no pattern of shards: a \{ wit"
    ):
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


def test_a_pattern_is_found_in_order(three: Path) -> None:
    found = find_shards(str(three / "train-*.tar"), "here")
    assert found == sorted(glob.glob(str(three / "*.tar")))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [  # "_" for no letters at all
        ('a', 'a'),
        ('t-{0..3}', 't-0 t-1 t-2 t-3'),
        ('t-{00..03}', 't-00 t-01 t-02 t-03'),
        ('t-{3..0}', 't-3 t-2 t-1 t-0'),
        ('{0..10..5}', '0 5 10'),
        ('{8..-2..5}', '8 3 -2'),
        ('{-1..1}', '-1 0 1'),
        ('{-01..1}', '-01 000 001'),
        ('{09..11}', '09 10 11'),
        ('{9..011}', '009 010 011'),
        ('{8..11}', '8 9 10 11'),
        ('{001..1}', '001'),
        ('{1..001}', '001'),
        ('{0..-0}', '0'),
        ('{1..3..0}', '1 2 3'),
        ('{1..5..-2}', '1 3 5'),
        ('{10..8..1}', '10 9 8'),
        ('{-5..-3}', '-5 -4 -3'),
        ('{a..e}', 'a b c d e'),
        ('{a..e..2}', 'a c e'),
        ('{e..a}', 'e d c b a'),
        ('{Y..b}', 'Y Z a b'),
        ('x{a,b}y', 'xay xby'),
        ('x{a}y', 'x{a}y'),
        ('x{}y', 'x{}y'),
        ('{,a}', '_ a'),
        ('{a,,b}', 'a _ b'),
        ('{1..a}', '{1..a}'),
        ('{a..1}', '{a..1}'),
        ('{1.5..2}', '{1.5..2}'),
        ('{ 0..2}', '{ 0..2}'),
        ('{aa..bb}', '{aa..bb}'),
        ('{{a,b},c}', 'a b c'),
        ('{a,{0..2}}z', 'az 0z 1z 2z'),
        ('{a,b}{0..1}', 'a0 a1 b0 b1'),
        ('{a},{b}', '{a},{b}'),
        ('{}{1..2}', '{}1 {}2'),
        ('{x{1,2}}', '{x1} {x2}'),
        ('x\\{a,b\\}', 'x{a,b}'),
        ('{a,b\\,c}', 'a b,c'),
        ('a\\b', 'ab'),
        ('{\\{,x}', '{ x'),
        ('a\\', 'a\\'),
        ('${a,b}', '$a $b'),
        ('/d/{train,val}-{00..01}.tar', '/d/train-00.tar /d/train-01.tar /d/val-00.tar /d/val-01.tar'),
        ('{a,b{c,d{e,f}}}g', 'ag bcg bdeg bdfg'),
    ],
)  # fmt: skip
def test_names_of_a_pattern(pattern: str, names: str) -> None:
    """The expected ones are those of the package braceexpand 0.1.7."""
    expected = [names] if pattern == "{ 0..2}" else names.split()
    assert [each or "_" for each in expand_pattern(pattern, "here")] == expected


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        *((each, "without its") for each in ("{a,b", "a}b", "x{0..2}{a", "{a,b}}", "{{a}", "}{")),
        *((each, "it means more than 1,000,000 names") for each in (
            "{0..99999999999}", "{0..9}" * 7, "{a,b}" * 20, "{0..999}{0..999}{0,1}",
            f"{{1..{MOST_NAMES + 1}}}", "{{0..900000},{0..900000}}",
            "{-99999999999999999999..0..3}",
        )),
        ("{a," * 5000 + "b" + "}" * 5000, "more than 20 braces in each other"),
        ("{0.." + "9" * 5000 + "}", "digits"),
    ],
)  # fmt: skip
def test_what_is_no_pattern(pattern: str, told: str) -> None:
    """Told before more names are made than anybody has shards."""
    with pytest.raises(DataError, match=told):
        expand_pattern(pattern, "here")
