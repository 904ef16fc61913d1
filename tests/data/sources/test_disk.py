from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from sslengine.data.decode.decoding import FORMATS
from sslengine.data.manifest import index_cache
from sslengine.data.options import split_options
from sslengine.data.sources.disk import IMAGE_SUFFIXES, FileListSource, FolderSource
from sslengine.errors import DataError
from tests.data.pictures import picture, write_picture, write_tree


def folder(root: Path, **keys: object) -> FolderSource:
    return FolderSource(split_options(DATA_PATHS=[str(root)], **keys), "TRAIN")  # type: ignore[arg-type]


def file_list(path: Path, **keys: object) -> FileListSource:
    return FileListSource(split_options(DATA_PATHS=[str(path)], **keys), "TRAIN")  # type: ignore[arg-type]


def same(image: Image.Image, number: int) -> bool:
    return image.mode == "RGB" and image.tobytes() == picture(number).tobytes()


def test_order_and_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        "b/2.png",
        "b/10.png",
        "b/deep/er/0.png",
        "b/deeper.png",
        "b-c/x.PNG",
        "a/z.ppm",
        "a/sub/a.bmp",
        "a/sub-b/a.bmp",
        "Z/1.png",
    )
    (tmp_path / "a" / "notes.txt").write_text("no image")
    oracle = ImageFolder(str(tmp_path))
    source = folder(tmp_path)
    assert source.class_names == oracle.classes
    assert source.num_classes == 4
    assert [source.path(i) for i in range(len(source))] == [path for path, _ in oracle.samples]
    assert source.labels().tolist() == oracle.targets
    assert [source.label(i) for i in range(len(source))] == oracle.targets
    assert all(source.image(i).tobytes() == oracle[i][0].tobytes() for i in range(len(source)))


def test_every_format_that_is_decoded_is_found_by_its_ending(tmp_path: Path) -> None:
    Image.init()
    known = Image.registered_extensions()
    assert {known[suffix] for suffix in IMAGE_SUFFIXES if suffix in known} >= {*FORMATS} - {"DIB"}
    assert all(known.get(suffix, "AVIF") in (*FORMATS, "AVIF") for suffix in IMAGE_SUFFIXES)
    white = (255, 255, 255)
    for name in ("a.gif", "b.JP2", "c.jfif"):
        Image.new("RGB", (8, 8), white).save(tmp_path / name, known[name[1:].lower()])
    source = folder(tmp_path)
    assert [source.image(row).getpixel((3, 3)) for row in range(len(source))] == [white] * 3


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    write_tree(tmp_path, "1.png", "0.png", ".hidden.png", ".cache/2.png")
    source = folder(tmp_path)
    assert (len(source), source.num_classes) == (2, 0)
    assert same(source.image(0), 1)
    assert same(source.image(1), 0)
    with pytest.raises(DataError, match=r"2 images lie in no class folder, the first is .*0.png"):
        source.labels()


def test_suffixes_in_any_case_and_names_in_any_bytes(tmp_path: Path) -> None:
    write_tree(tmp_path, "a.PnG")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.png")
    os.rename(write_picture(tmp_path / "b.png", 1), odd)
    source = folder(tmp_path)
    assert same(source.image(0), 0)
    assert same(source.image(1), 1)
    assert source.path(1) == odd


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.DATA_PATHS.0: .*gone is not there"):
        folder(tmp_path / "gone")
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError) as told:
        folder(tmp_path / "phots" / "train")
    assert str(told.value).endswith(f": {tmp_path} has no 'phots'. Did you mean 'photos'?")
    with pytest.raises(DataError, match=r"a file, not a folder"):
        folder(write_picture(tmp_path / "one.png", 0))
    (tmp_path / "empty" / "class").mkdir(parents=True)
    (tmp_path / "empty" / "readme.txt").touch()
    with pytest.raises(DataError, match=r"no image in .*empty.*\.jpg, \.jpeg, .*capitals"):
        folder(tmp_path / "empty")


def test_it_goes_to_a_worker_small(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(1100):
        (tmp_path / "class" / f"{number:04}.png").touch()
    write_picture(tmp_path / "class" / "0007.png", 7)
    source = folder(tmp_path)
    assert len(pickle.dumps(source)) < 3000
    again = pickle.loads(pickle.dumps(source))
    assert again.path(1099) == str(tmp_path / "class" / "1099.png")
    assert same(again.image(7), 7)


def test_what_changes_between_two_starts_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "WORTH_KEEPING", 1)
    root = write_tree(tmp_path / "images", "a/0.png", "b/1.png")
    np.save(tmp_path / "list.npy", ["one.png"])
    for path in (root, root / "a", root / "b", tmp_path / "list.npy"):
        os.utime(path, (1e9, 1e9))
    assert (len(folder(root)), len(file_list(tmp_path / "list.npy"))) == (2, 1)
    monkeypatch.setattr("sslengine.data.sources.disk.find_images", None)  # not looked through again
    assert (len(folder(root)), len(file_list(tmp_path / "list.npy"))) == (2, 1)
    monkeypatch.undo()
    write_picture(root / "b" / "2.png", 2)
    np.save(tmp_path / "list.npy", ["one.png", "two.png"])
    assert (len(folder(root)), len(file_list(tmp_path / "list.npy"))) == (3, 2)


def test_a_source_gives_the_bytes_themselves(tmp_path: Path) -> None:
    write_tree(tmp_path, "a/0.png", "b/1.png")
    source = folder(tmp_path)
    assert source.encoded(1) == (tmp_path / "b" / "1.png").read_bytes()
    assert source.image(1) == source.decoder(source.encoded(1))


def test_keys_of_the_decoder_reach_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "x.png", 0, side=8)
    with pytest.raises(Image.DecompressionBombError, match=r"MAX_IMAGE_PIXELS=50"):
        folder(tmp_path, MAX_IMAGE_PIXELS=50).image(0)
    assert folder(tmp_path, EXIF_ROTATION=True).decoder.exif_rotation


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("dtype", [str, bytes])
def test_file_list(tmp_path: Path, cached: bool, dtype: type) -> None:
    paths = [str(write_picture(tmp_path / f"{number}.png", number)) for number in (3, 1, 2)]
    np.save(tmp_path / "list.npy", np.array([p.encode() if dtype is bytes else p for p in paths]))
    source = file_list(tmp_path / "list.npy", CACHE_INDEX=cached)
    assert len(source) == 3
    assert [source.path(i) for i in range(3)] == paths
    assert source.path(-1) == paths[2]
    again = pickle.loads(pickle.dumps(source))
    assert [same(each.image(1), 1) for each in (source, again)] == [True, True]


def test_a_mapped_list_is_not_copied_to_workers(tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", np.array(["x" * 100] * 10_000))
    source = file_list(tmp_path / "list.npy")
    source.path(0)
    assert len(pickle.dumps(source)) < 2000


def test_prefixes(tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", np.array(["/old/old/a.png", "/other/b.png"]))
    moved = file_list(
        tmp_path / "list.npy", REMOVE_IMG_PATH_PREFIX="/old", NEW_IMG_PATH_PREFIX="/new"
    )
    assert [moved.path(i) for i in range(2)] == ["/new/old/a.png", "/other/b.png"]
    put_before = file_list(tmp_path / "list.npy", NEW_IMG_PATH_PREFIX="/data")
    assert put_before.path(1) == "/data/other/b.png"


def test_relative_paths_begin_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_picture(tmp_path / "here" / "1.png", 1)
    np.save(tmp_path / "list.npy", np.array(["1.png"]))
    monkeypatch.chdir(tmp_path / "here")
    assert same(file_list(tmp_path / "list.npy").image(0), 1)


def test_bad_file_lists(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"there is no file .*It is a folder: use the source disk_folder"
    ):
        file_list(tmp_path)
    np.save(tmp_path / "numbers.npy", np.arange(3))
    with pytest.raises(DataError, match=r"no file .*has no 'number.npy'. Did you mean 'numbers"):
        file_list(tmp_path / "number.npy")
    with pytest.raises(
        DataError, match=r"must hold a list of paths; .*shape \(3,\) and type int64"
    ):
        file_list(tmp_path / "numbers.npy")
    np.save(tmp_path / "objects.npy", np.array(["a", None], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"reading them can run code"):
        file_list(tmp_path / "objects.npy")
    (tmp_path / "text.npy").write_text("a.png\nb.png\n")
    with pytest.raises(DataError, match=r"not a .npy file"):
        file_list(tmp_path / "text.npy")
    np.savez(tmp_path / "several.npz", a=np.arange(2))
    with pytest.raises(DataError, match=r"is a .npz archive"):
        file_list(tmp_path / "several.npz", CACHE_INDEX=False)
