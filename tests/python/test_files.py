"""`sslengine.train` and `embed` of objects: Pillow images, torch's and Hugging Face's datasets.

The images are the same in every form, so features and losses must be those of the array.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import sslengine
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.monitor import history
from sslengine.python.files import list_items, open_data, pack
from tests.command.photos import write_photos
from tests.command.test_every_kind import FROM_PYTHON, pixels
from tests.tail import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

NAMES = ["cat", "ant"] * 6  # in an order that is not that of the names


def images() -> list[Image.Image]:
    return [Image.fromarray(each) for each in pixels()]


class Items(Dataset[Any]):
    def __init__(self, labels: list[Any]) -> None:
        self.images, self.labels = images(), labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Image.Image, Any]:
        return self.images[number], self.labels[number]


def rows() -> Any:
    datasets: Any = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["cat", "ant"])
    features = datasets.Features({"photo": datasets.Image(), "kind": classes})
    given = {"photo": images(), "kind": [0, 1] * 6}
    return datasets.Dataset.from_dict(given, features=features)


def splits() -> Any:
    import datasets

    return datasets.DatasetDict(train=rows(), test=rows().select([0]))


FORMS: dict[str, tuple[Callable[[], Any], str]] = {
    "images": (lambda: (images(), NAMES), "image"),
    "array": (lambda: (pixels(), NAMES), "image"),
    "tensor": (lambda: (torch.from_numpy(pixels()).permute(0, 3, 1, 2), NAMES), "image"),
    "torch Dataset": (lambda: Items(NAMES), "image"),
    "subset": (lambda: Subset(Items(NAMES), range(12)), "image"),
    "datasets": (rows, "row"),
    "DatasetDict": (splits, "row"),
}


@pytest.mark.parametrize("form", slow_but(["datasets"], FORMS))
def test_each_form_has_the_losses_and_features_of_the_array(form: str, tmp_path: Path) -> None:
    make, called = FORMS[form]
    plain = sslengine.train(pixels(), out=tmp_path / "array", **FROM_PYTHON)
    run = sslengine.train(make(), out=tmp_path / "run", **FROM_PYTHON)
    losses, expected = (
        [step["loss"] for step in history.read(tmp_path / name, "step")]
        for name in ("run", "array")
    )
    assert losses == expected
    found, features = run.embed(make(), workers=0), plain.embed(pixels(), workers=0).features
    assert (found.features == features).all()
    assert found.labels == NAMES
    assert found.paths == [f"{called} {number}" for number in range(12)]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["images", "datasets"])
def test_two_ranks_with_workers_read_them(form: str, tmp_path: Path) -> None:
    values = {"OPTIMIZER.num_iterations": 2, "DISTRIBUTED.NUM_PROC_PER_NODE": 2}
    sslengine.train(FORMS[form][0](), "simclr", "test_resnet", size=32, batch_size=2,
                    device="cpu", workers=1, values=values, out=tmp_path / "run")  # fmt: skip
    assert "2 ranks" in (tmp_path / "run" / "log.txt").read_text()
    assert len(history.read(tmp_path / "run", "step")) == 2


@pytest.mark.slow
def test_the_same_call_resumes_with_the_same_images(tmp_path: Path) -> None:
    """Although they lie elsewhere: losses are those of a run without a stop."""
    values = {"CHECKPOINT.CHECKPOINT_FREQUENCY": 1, "LOG_FREQUENCY": 1}
    options = {**FROM_PYTHON, "values": values}
    for epochs in (1, 2):
        keys = {**values, "OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 0.01}}
        part = {**options, "values": keys, "epochs": epochs}
        sslengine.train(images(), out=tmp_path / "parts", **part)
    sslengine.train(images(), out=tmp_path / "whole", **part)
    parts, whole = (
        [step["loss"] for step in history.read(tmp_path / name, "step")]
        for name in ("parts", "whole")
    )
    assert parts == whole
    assert len(whole) == 6


@pytest.mark.parametrize("kind", ["objects", "a column of pandas"])
def test_names_that_are_objects(kind: str) -> None:
    names: Any = np.array(NAMES, object)
    if kind != "objects":
        names = pytest.importorskip("pandas").Series(NAMES)
    with open_data((pixels(), names)) as files:
        assert np.load(files.labels).tolist() == NAMES
    names[3] = None
    with (
        pytest.raises(ConfigError, match=r"expected labels .*, names, .* \(12,\) of object"),
        open_data((pixels(), names)),
    ):
        pass


def test_labels_in_one_column_are_class_numbers() -> None:
    """Keras has CIFAR's so: N x 1."""
    with open_data((pixels(), np.arange(12)[:, None])) as files:
        assert np.load(files.labels).tolist() == list(range(12))


def test_an_image_folder_is_its_files(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    photos = ImageFolder(str(write_photos(tmp_path / "photos", each=2)))
    with open_data(photos) as files:
        assert [each.decode() for each in np.load(files.images)] == [p for p, _ in photos.samples]
        assert np.load(files.labels).tolist() == ["dark"] * 2 + ["light"] * 2
        assert files.each == ""
    photos.target_transform = str
    photos.transforms = photos.target_transform
    with open_data(photos) as files:
        assert files.images.endswith(".tar")


def test_a_dataset_on_disk_is_not_copied(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    rows().save_to_disk(str(tmp_path / "rows"))
    loaded = datasets.load_from_disk(str(tmp_path / "rows"))
    with open_data(loaded) as files:
        assert files.images == str(tmp_path / "rows")
    for changed in (loaded.select([3, 1]), loaded.rename_column("photo", "other")):
        with open_data(changed) as files:
            assert not files.images.startswith(str(tmp_path / "rows"))
            again = datasets.load_from_disk(files.images)
            assert again.column_names == changed.column_names
            assert again["kind"][:] == changed["kind"][:]


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr", "LAB"]
)
def test_a_copy_has_the_pixels_of_the_image(mode: str) -> None:
    image = images()[0]
    if mode in ("I;16", "I", "F"):
        values = np.arange(36 * 36).reshape(36, 36) * 37
        image = Image.fromarray(values.astype({"I;16": "u2", "I": "i4", "F": "f4"}[mode]))
    elif mode == "LAB":
        image = Image.frombytes("LAB", image.size, image.tobytes())
    else:
        image = image.convert(mode)
    assert image.mode == mode
    image.getexif()[274] = 6
    stream = BytesIO()
    assert pack(list_items([image]), stream)[0] == 1
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        (member,) = tar.getmembers()
        stored = Image.open(BytesIO(tar.extractfile(member).read()))  # type: ignore[union-attr]
        assert (np.asarray(stored) == np.asarray(image)).all()
    assert stored.mode == mode
    if stored.format == "PNG":
        assert stored.getexif()[274] == 6


def test_a_copy_of_a_tiff_loses_nothing() -> None:
    """Of one whose file was compressed as JPEG."""
    lossy = BytesIO()
    images()[0].convert("CMYK").save(lossy, "TIFF", compression="jpeg")
    image, stream = Image.open(lossy), BytesIO()
    pack(list_items([image]), stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        content = tar.extractfile(tar.getmembers()[0]).read()  # type: ignore[union-attr]
    assert (np.asarray(Image.open(BytesIO(content))) == np.asarray(image)).all()


def test_labels_that_are_no_classes_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    labels: list[Any] = [torch.tensor(3), np.int64(1), True, "a"]
    assert pack(list_items(Items(labels + [2] * 8)), BytesIO())[1] == [3, 1, 1, "a", *[2] * 8]
    assert pack(list_items(Items([{"box": 1}] * 12)), BytesIO())[1] is None
    assert "no labels are used" not in caplog.text
    assert pack(list_items(Items([1] * 11 + [None])), BytesIO())[1] is None
    assert "1 of 12 images, the first is number 11, have no whole number" in caplog.text


class Broken(Items):
    def __getitem__(self, number: int) -> Any:
        raise KeyError("gone")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Changed(Items):
    transform = torch.nn.Identity()

    def __getitem__(self, number: int) -> Any:
        return torch.zeros(3, 8, 8), 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros(5), r"expected images as an array .* got the shape \(5,\)"),
        (list, r"expected a path, .*; got a list"),
        (lambda: (images(), [1.5] * 12), r"expected labels as whole numbers, names, .* float64"),
        (lambda: (images(), ["a"]), r"one for each of 12 images; got the shape \(1,\)"),
        (lambda: TensorDataset(torch.zeros(2, 3)), r"item 0 of TensorDataset is a Tensor; expec"),
        (lambda: Changed(NAMES), r"is a Tensor; .* leave the dataset's own transform out"),
        (lambda: Broken(NAMES), r"item 0 of Broken cannot be read: KeyError: 'gone'"),
        (Endless, r"a Endless, which can only be read from one end .* stream=True, length=N"),
        (lambda: rows().with_transform(dict), r"has a transform \(set_transform\), which would"),
        (lambda: rows().select([]), r"it holds no image"),
        (lambda: type(splits())(test=rows()), r"no split train; it has test"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused_with_what_is(
    make: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=f"^data: .*{message}") as raised:
        sslengine.train(make(), "simclr", out=tmp_path / "run")
    assert isinstance(raised.value, SSLEngineError)
    assert not (tmp_path / "run").exists()


def test_no_room_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sslengine.python.files.pack", full)
    with pytest.raises(ConfigError, match=r"cannot be copied to .* \(\$TMPDIR\): .*No space left"):
        sslengine.train(Items(NAMES), "simclr", out=tmp_path / "run")
