from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from sslengine.data.decode.decoding import FORMATS
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest import index
from sslengine.data.options import SplitOptions, split_options
from sslengine.data.sources.disk import IMAGE_SUFFIXES, FileListSource, FolderSource, TableSource
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
    with pytest.raises(DataError, match=r"2 of 2 images.*0.png, lie in no class folder"):
        source.labels()


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
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
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


def test_prefixes(tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", np.array(["/old/old/a.png", "/other/b.png"]))
    moved = file_list(
        tmp_path / "list.npy", REMOVE_IMG_PATH_PREFIX="/old", NEW_IMG_PATH_PREFIX="/new"
    )
    assert [moved.path(i) for i in range(2)] == ["/new/old/a.png", "/other/b.png"]
    put_before = file_list(tmp_path / "list.npy", NEW_IMG_PATH_PREFIX="/data")
    assert put_before.path(1) == "/data/other/b.png"


def test_bad_file_lists(tmp_path: Path) -> None:
    np.save(tmp_path / "numbers.npy", np.arange(3))
    np.save(tmp_path / "objects.npy", np.array(["a", None], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("a.png\nb.png\n")
    np.savez(tmp_path / "several.npz", a=np.arange(2))
    for name, message in {
        "": "no file .*it is a folder",
        "number.npy": "no file .*Did you mean 'numbers",
        "numbers.npy": r"must hold a list of paths; .*shape \(3,\) and type int64",
        "objects.npy": "reading them can run code",
        "text.npy": "not a .npy file",
        "several.npz": "is a .npz archive",
    }.items():
        with pytest.raises(DataError, match=message):
            file_list(tmp_path / name, CACHE_INDEX=False)


def table(path: Path, **keys: object) -> TableSource:
    return TableSource(split_options(DATA_PATHS=[str(path)], **keys), "TRAIN")  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path, "a/0.png", "a/1.png", "b, c/2.png")


def test_paths_from_the_tables_folder_and_labels(root: Path) -> None:
    text = f'split,path,label\ntrain,{root}/a/1.png,dog\ntrain,"b, c/2.png",ant\nval,a/0.png,dog\n'
    source = table(write(root / "list.csv", text))
    assert [Path(source.path(index)).name for index in range(3)] == ["1.png", "2.png", "0.png"]
    assert [source.image(index).tobytes() for index in range(3)] == [
        picture(number).tobytes() for number in (1, 2, 0)
    ]
    assert (source.labels().tolist(), source.label(1), source.num_classes) == ([1, 0, 1], 0, 2)


def test_columns_by_name_and_by_usual_names(root: Path) -> None:
    text = "id\tFilename\t label\tother\n0\ta/0.png\t4\ta/1.png\n"
    file = write(root / "list.tsv", text)
    assert table(file).path(0).endswith("a/0.png")
    assert table(file).labels().tolist() == [4]
    assert table(file, IMAGE_COLUMN="other").path(0).endswith("a/1.png")
    assert table(file, LABEL_COLUMN="id").labels().tolist() == [0]


def test_a_spreadsheet_of_a_country_whose_decimals_have_commas(root: Path) -> None:
    text = '\ufeffimage;breite\r\na/0.png;1,5\r\n"b, c/2.png";2,5\r\n'
    file = write(root / "list.csv", text)
    source = table(file, LABEL_COLUMN="breite")
    assert [Path(source.path(row)).name for row in range(2)] == ["0.png", "2.png"]
    assert source.class_names == ["1,5", "2,5"]
    assert source.column("breite", "here") == ["1,5", "2,5"]
    assert (
        table(write(file, "path;x,label\na/0.png,4\n"), IMAGE_COLUMN="path;x")
        .path(0)
        .endswith("0.png")
    )


def test_a_table_of_paths_alone(root: Path) -> None:
    options = split_options(
        DATA_SOURCES=["csv_filelist"],
        DATA_PATHS=[str(write(root / "list.csv", "path\na/0.png\n\na/1.png\n"))],
        LABEL_TYPE="sample_index",
    )
    data = SSLDataset(options, "TRAIN", 0)
    assert (len(data), data.sources[0].num_classes) == (2, 0)
    assert data[0, 1]["data"][0].tobytes() == picture(1).tobytes()
    options.LABEL_TYPE, options.LABEL_SOURCES = "standard", ["csv_filelist"]
    with pytest.raises(DataError, match=r"2 of 2 images.* have none.*config.DATA.TRAIN.LABEL_COL"):
        SSLDataset(options, "TRAIN", 0)


# As CheXpert's tables are, and as pandas writes a table of floats with gaps.
FINDINGS = """Path,Sex,No Finding,Edema,Pleural Effusion,Fracture
a/0.png,Female,1.0,,,0.0
a/1.png,Male,,-1.0,1.0,
b/2.png,Male,,,,
"""


def test_a_column_for_each_class(root: Path) -> None:
    keys = {"LABEL_COLUMNS": ["Edema", "Pleural Effusion", "Fracture"]}
    source = table(write(root / "train.csv", FINDINGS), **keys)
    assert source.labels().tolist() == [[-1, -1, 0], [-1, 1, -1], [-1, -1, -1]]
    assert source.labels().dtype == np.int8
    assert (source.num_classes, source.class_names) == (3, keys["LABEL_COLUMNS"])
    assert (source.label(1).tolist(), source.path(1)) == ([-1, 1, -1], str(root / "a/1.png"))


def test_class_columns_of_a_parquet_table(root: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "path": ["a/0.png", "a/1.png"],
        "cat": [1.0, None],
        "dog": [True, False],
        "ant": [0, -1],
    }
    parquet.write_table(pyarrow.table(columns), root / "list.parquet")
    source = table(root / "list.parquet", LABEL_COLUMNS=["cat", "ant", "dog"])
    assert source.labels().tolist() == [[1, 0, 1], [-1, -1, 0]]


def test_class_columns_of_test_are_in_the_order_of_train(root: Path) -> None:
    """Unknown stays unknown, also of a class that no image of TEST shows."""

    def options(names: str) -> SplitOptions:
        file = write(root / "list.csv", FINDINGS)
        return split_options(DATA_SOURCES=["csv_filelist"], DATA_PATHS=[str(file)], LABEL_TYPE="standard",
                            LABEL_SOURCES=["csv_filelist"], LABEL_COLUMNS=names.split(","))  # fmt: skip

    train = SSLDataset(options("Edema,Pleural Effusion,Fracture"), "TRAIN", 0)
    test = SSLDataset(options("Fracture,Edema,Pleural Effusion"), "TEST", 0, classes=train.classes)
    assert [column.tolist() for column in test.standard_labels] == [
        [[-1, -1, 0], [-1, 1, -1], [-1, -1, -1]]
    ]
    with pytest.raises(DataError, match=r"of 2 classes, and in TRAIN .* 3"):
        SSLDataset(options("Fracture,Edema"), "TEST", 0, classes=train.classes)


@pytest.mark.parametrize("gap", ["", "nan", "-1"])
def test_a_row_without_a_label_is_named(root: Path, gap: str) -> None:
    file = write(root / "list.csv", f"path,label\na/0.png,11.0\na/1.png,{gap}\n")
    with pytest.raises(DataError, match=r"1 of 2 images.*a/1\.png, have none .*list\.csv"):
        table(file).labels()


def test_relative_paths_of_a_copied_table(root: Path, tmp_path: Path) -> None:
    file = write(root / "list.csv", "path\na/0.png\n")
    source = table(file, COPY_TO_LOCAL_DISK=True, COPY_DESTINATION_DIR=str(tmp_path / "fast"))
    assert source.path(0) == str(root / "a/0.png")


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("x,y\n1,2\n", {}, r"DATA_PATHS.0: which column of .*holds the paths\? .*IMAGE_COLUMN.*\n.*x, y"),
        ("path\na\n", {"IMAGE_COLUMN": "paht"}, r"TRAIN.IMAGE_COLUMN: .* no column 'paht'. Did you mean 'path'"),
        ("path\na\n", {"LABEL_COLUMN": "label"}, r"TRAIN.LABEL_COLUMN: .* has no column 'label'"),
        ("path,a,b\nx,0,1\ny,1,2\n", {"LABEL_COLUMNS": ["a", "b"]}, r"list.csv: row 2, column 'b': expected 1, 0, .*got '2'"),
        ("path,cat\nx,0\n", {"LABEL_COLUMNS": ["cta"]}, r"TRAIN.LABEL_COLUMNS: .* no column 'cta'. Did you mean 'cat'"),
        ("path,label\na,1\nb\n", {}, r"list.csv: line 3 has 1 columns, fewer than the first line"),
        ("path,label\na,Roe\nb,Doe, J\n", {}, r"list.csv: line 3 has 3 columns, more than"),
        ("path,label\n,1\n", {}, r"row 1 of .* has no path"),
        ("path\n", {}, r"the table .* has no row"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(
    tmp_path: Path, text: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        table(write(tmp_path / "list.csv", text), **keys)


def test_parquet(root: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reads .parquet, pip install pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = pyarrow.table({"label": ["b", "a", "b"], "path": ["a/1.png", "a/0.png", "b, c/2.png"]})
    parquet.write_table(rows, root / "list.parquet")
    source = table(root / "list.parquet")
    assert source.labels().tolist() == [1, 0, 1]
    assert source.image(2).tobytes() == picture(2).tobytes()
    (root / "bad.parquet").write_text("path\n")
    with pytest.raises(DataError, match=r"bad.parquet is not a parquet file"):
        table(root / "bad.parquet")


def test_images_in_the_table_are_another_source(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table_of_images = arrow.table({"image": [{"bytes": b"...", "path": None}]})
    pytest.importorskip("pyarrow.parquet").write_table(table_of_images, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"has no path, but .* DATA_SOURCES to huggingface_dataset"):
        table(tmp_path / "a.parquet")


def test_suffixes_in_any_case_and_names_in_any_bytes(tmp_path: Path) -> None:
    write_tree(tmp_path, "a.PnG")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.png")
    os.rename(write_picture(tmp_path / "b.png", 1), odd)
    source = folder(tmp_path)
    assert same(source.image(0), 0)
    assert same(source.image(1), 1)
    assert source.path(1) == odd
