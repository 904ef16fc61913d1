"""JPEG files that are decoded after collate: here by torchvision on a CPU."""

from __future__ import annotations

import logging
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.backends.device import files
from sslengine.data.augment.backends.device.backend import DeviceBackend
from sslengine.data.augment.backends.device.jpeg import JpegFile
from sslengine.data.decode.decoding import Decoder
from sslengine.data.feed import DataFeed
from sslengine.data.loading.device_prefetch import on_device
from sslengine.data.options import DataOptions, split_options
from sslengine.errors import DataError
from sslengine.trainer import loop
from tests.data.augment.lists import COLOUR, LISTS, TENSOR
from tests.data.augment.photos import photo
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.task.runs import Watch, make_task

# torchvision 0.29 deprecates its decoder.
pytestmark = pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning")

COUNT, SIDE, SMALL = 6, 48, 12
VIEWS: list[dict[str, Any]] = [
    {"name": "ImgReplicatePil", "num_times": 2},
    {"name": "RandomResizedCrop", "size": SIDE},
    {"name": "RandomHorizontalFlip"},
]
# Big crops of 48 pixels, and small ones, for which a file is too large.
CROPS: list[dict[str, Any]] = [
    {
        "name": "ImgPilToMultiCrop",
        "total_num_crops": 5,
        "num_crops": [2, 3],
        "size_crops": [SIDE, SMALL],
        "crop_scales": [[0.3, 1], [0.05, 0.3]],
    },
    {"name": "RandomHorizontalFlip"},
]
BLACK_IS_0 = [{"name": "ToTensor"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jpegs")
    (root / "a").mkdir()
    for number in range(COUNT):
        image = photo(number).resize((70 + number, 60)).convert("RGB")
        image.save(root / "a" / f"{number}.jpg", quality=70 + number)
    return root


def feed(folder: Path, backend: str = "device_jpeg", workers: int = 0, **keys: Any) -> DataFeed:
    training, placing = keys.pop("training", True), keys.pop("placing", {})
    split = {
        "DATA_SOURCES": ["disk_folder"],
        "DATA_PATHS": [str(folder)],
        "LABEL_TYPE": "sample_index",
        "BATCHSIZE_PER_REPLICA": 3,
        "TRANSFORMS": [*VIEWS, *BLACK_IS_0],
        "COLLATE_FUNCTION": "simclr_collator",
        "CACHE_INDEX": False,
        **keys,
    }
    options = DataOptions(
        TRAIN=split_options(**split), NUM_DATALOADER_WORKERS=workers, AUGMENT_BACKEND=backend
    )
    return DataFeed(options, "TRAIN", training=training, seed=3, **placing)


def images(feed: DataFeed) -> list[Tensor]:
    """All images of an epoch, one list for the sizes of its crops."""
    found: list[Tensor] = []
    for batch in feed.batches(1):
        for key in ("data", "data_momentum", "images", "patches"):
            for each in batch.get(key, []):
                found += each if isinstance(each, list) else [each]
    feed.close()
    return found


def levels(folder: Path, **keys: Any) -> Tensor:
    """By how many levels of 255 values differ from those of the back-end on the CPU."""
    ours, theirs = images(feed(folder, **keys)), images(feed(folder, "auto", **keys))
    assert [each.shape for each in ours] == [each.shape for each in theirs]
    assert [each.dtype for each in ours] == [torch.float32] * len(ours)
    pairs = zip(ours, theirs, strict=True)
    return torch.cat([(255 * (one - other)).abs().flatten() for one, other in pairs])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each call decoded."""
    counts: list[int] = []
    by_torchvision = files._by_torchvision

    def counted(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
        counts.append(len(encoded))
        return by_torchvision(encoded, device)

    monkeypatch.setattr(files, "_by_torchvision", counted)
    return counts


def test_crops_are_the_workers_within_a_level(folder: Path, decoded: list[int]) -> None:
    """The worker rounds between rows and columns, the device does not."""
    differences = levels(folder)
    assert differences.max() < 1.01
    assert differences.mean() < 0.2
    assert decoded == [3, 3]


@pytest.mark.parametrize("interpolation", [2, 3])  # Pillow's bilinear and bicubic
def test_each_filter(folder: Path, interpolation: int, decoded: list[int]) -> None:
    crop = {**VIEWS[1], "interpolation": interpolation}
    assert levels(folder, TRANSFORMS=[VIEWS[0], crop, *BLACK_IS_0]).max() < 1.01
    assert decoded == [3, 3]


def test_colours_and_blur_follow(folder: Path) -> None:
    """In the same order with the same numbers: levels that a crop differs by may grow."""
    differences = levels(folder, TRANSFORMS=[*VIEWS, COLOUR, *BLACK_IS_0])
    assert differences.mean() < 0.6
    assert (differences > 4).float().mean() < 0.01


def test_small_crops_are_cut_from_the_file_that_came_with_a_big_one(
    folder: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JpegFile, "pixels", property(lambda self: pytest.fail("in the worker")))
    keys = {"TRANSFORMS": [*CROPS, *BLACK_IS_0], "COLLATE_FUNCTION": "multicrop_collator"}
    assert levels(folder, **keys).max() < 1.01
    assert decoded == [3, 3]


def test_views_under_two_keys(folder: Path, decoded: list[int]) -> None:
    assert levels(folder, COLLATE_FUNCTION="moco_collator").max() < 1.01
    assert decoded == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("name", "collate"),
    [("pirl", "patch_and_image_collator"), ("evaluation", "default_collate")],
)
def test_lists_with_crops_of_crops(folder: Path, name: str, collate: str) -> None:
    """Those are made in the worker: equal to the bit, but for what is cut from a file."""
    keys = {"TRANSFORMS": LISTS[name], "COLLATE_FUNCTION": collate}
    assert levels(folder, **keys).median() < 3
    if name == "evaluation":
        assert levels(folder, training=False, **keys).max() == 0


def test_a_file_that_does_not_fit_is_decoded_in_the_worker(
    folder: Path, decoded: list[int]
) -> None:
    crop = {**VIEWS[1], "size": 8}
    assert levels(folder, TRANSFORMS=[VIEWS[0], crop, COLOUR, *TENSOR]).max() == 0
    assert decoded == []


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _jpeg(image: Image.Image, **keys: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "JPEG", **keys)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(_png(photo(1)), id="png"),
        pytest.param(_jpeg(photo(1).convert("L")), id="grey"),
        pytest.param(_jpeg(photo(1).convert("CMYK")), id="cmyk"),
        pytest.param(_jpeg(photo(1)) + b"more", id="something follows"),
    ],
)
def test_no_plain_jpeg_is_made_in_the_worker(
    tmp_path: Path, encoded: bytes, decoded: list[int]
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encoded)
    assert levels(tmp_path).max() == 0
    assert decoded == []


def test_images_turned_by_exif_are_made_in_the_worker(folder: Path, decoded: list[int]) -> None:
    assert levels(folder, EXIF_ROTATION=True).max() == 0
    assert decoded == []


def test_another_sample_replaces_a_file_that_was_cut_off(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").mkdir()
    for file in sorted((folder / "a").iterdir()):
        encoded = file.read_bytes()
        cut = encoded[: len(encoded) // 2] if file.name == "4.jpg" else encoded
        (tmp_path / "a" / file.name).write_bytes(cut)
    with caplog.at_level(logging.WARNING):
        assert levels(tmp_path, MAX_INVALID_SHARE=0.5).max() < 1.01
    assert "a/4.jpg" in caplog.text


def test_pillow_decodes_what_the_device_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("not compiled with nvJPEG")

    monkeypatch.setattr(files, "_by_torchvision", refuse)
    with caplog.at_level(logging.WARNING):
        assert levels(folder).max() < 1.01
    assert "Pillow decodes 3 files, one of which is refused: not compiled" in caplog.text


def test_large_images_are_decoded_some_at_a_time(
    folder: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIXELS_AT_ONCE", 2 * 60 * 76)
    assert levels(folder).max() < 1.01
    assert decoded == [2, 1, 2, 1]
    monkeypatch.setattr(files, "PIXELS_AT_ONCE", 1)
    decoded.clear()
    assert levels(folder).max() < 1.01
    assert decoded == [1] * COUNT


def test_nothing_but_the_decoder_hangs_on_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without values: what would have to wait for them fails."""

    def nowhere(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
        opened = [Image.open(BytesIO(each.numpy().tobytes())) for each in encoded]
        return [torch.empty(3, each.height, each.width, device=device) for each in opened]

    keys = {
        "TRANSFORMS": [*CROPS, COLOUR, *TENSOR],
        "COLLATE_FUNCTION": "multicrop_collator",
    }
    expected = images(feed(folder, **keys))
    monkeypatch.setattr(files, "_by_torchvision", nowhere)
    there = feed(folder, **keys)
    meta = torch.device("meta")
    loaded = list(there._loader.batches())
    made = list(on_device(loaded, meta, overlap=False, arrival=there.dataset.arrival(meta)))
    crops = [crop for batch in made for crop in batch["data"][0]]
    assert [crop.shape for crop in crops] == [crop.shape for crop in expected]
    assert all(crop.is_meta for crop in crops)


@pytest.fixture
def backend() -> Any:
    return pickle.loads(pickle.dumps(build_backend("device_jpeg")))


def source(backend: Any, number: int = 0) -> Any:
    decoder = Decoder.of(split_options(), "TRAIN")
    return backend.decode(_jpeg(photo(number).resize((70, 60))), decoder)


def test_the_parcels_stay_as_they_are(backend: Any) -> None:
    from sslengine.data.augment import operations as ops

    given, crop = source(backend), ops.Crop(1, 2, 50, 60, to=(SIDE, SIDE))
    parcels = torch.stack([backend.parcel(given, [crop, ops.Grey()]) for _ in range(2)])
    before = parcels.clone()
    (made,) = backend.finished(backend.opened([parcels]))
    assert torch.equal(parcels, before)
    expected = DeviceBackend.tensor(backend, given.pixels, [crop, ops.Grey()])
    assert (made.int() - expected.int()).abs().max() <= 2
    small = ops.Crop(1, 2, 50, 60, to=(SMALL, SMALL))
    with pytest.raises(DataError, match="device_jpeg needs a collator that keeps the views"):
        backend.opened([backend.parcel(given, [small])[None]])


def test_what_the_device_decodes_is_told(backend: Any) -> None:
    from sslengine.data.augment import operations as ops

    crop = ops.Crop(1, 2, 50, 60, to=(SIDE, SIDE))
    some = [[crop, ops.Grey()], [crop, crop]]
    told = backend.left_to_the_device([backend.parcel(source(backend), each) for each in some])
    assert "Grey 0.5" in told
    assert told.endswith("; of 50% of the views decoding too")


def test_a_sample_to_look_at_is_finished(folder: Path) -> None:
    keys = {"TRANSFORMS": [*CROPS, *BLACK_IS_0], "COLLATE_FUNCTION": "multicrop_collator"}
    ours, theirs = (feed(folder, each, **keys).dataset[0, 1] for each in ("device_jpeg", "auto"))
    for one, other in zip(ours["data"], theirs["data"], strict=True):
        assert (255 * (one - other)).abs().max() < 1.01


def test_any_number_of_workers(folder: Path) -> None:
    keys = {"TRANSFORMS": [*CROPS, COLOUR, *TENSOR], "COLLATE_FUNCTION": "multicrop_collator"}
    expected, found = images(feed(folder, **keys)), images(feed(folder, workers=2, **keys))
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


def _views_by_image(folder: Path, rows: int, **placing: int) -> dict[int, Tensor]:
    """All views of each image that this rank gets."""
    keys = {"TRANSFORMS": [*CROPS, COLOUR, *TENSOR], "COLLATE_FUNCTION": "multicrop_collator"}
    ours = feed(folder, placing=placing, BATCHSIZE_PER_REPLICA=rows, **keys)
    found: dict[int, Tensor] = {}
    for batch in ours.batches(1):
        (views,), (labels,) = batch["data"], batch["label"]
        of_images = zip(*(each.flatten(1) for each in views), strict=True)
        for index, crops in zip(labels.tolist(), of_images, strict=False):
            found[index] = torch.cat(crops)
    ours.close()
    return found


def test_two_ranks_have_the_views_of_one_process(folder: Path) -> None:
    whole = _views_by_image(folder, 4)
    one, two = (_views_by_image(folder, 2, rank=rank, world_size=2) for rank in (0, 1))
    assert (one | two).keys() == whole.keys()
    assert one.keys().isdisjoint(two)
    for index, views in (one | two).items():
        # Sums of a batch of another size may be rounded otherwise.
        torch.testing.assert_close(views, whole[index], atol=1e-3, rtol=0)


RUN: dict[str, Any] = {
    "DATA__AUGMENT_BACKEND": "device_jpeg",
    "DATA__TRAIN__DATA_SOURCES": ["disk_folder"],
    "DATA__TRAIN__DATA_LIMIT": -1,
    "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2,
    "DATA__TRAIN__TRANSFORMS": [*VIEWS, COLOUR, *TENSOR],
    "DATA__TRAIN__COLLATE_FUNCTION": "simclr_collator",
}


def test_a_run_goes_on_in_mid_epoch(folder: Path, tmp_path: Path) -> None:
    paths = {"DATA__TRAIN__DATA_PATHS": [str(folder)]}
    assert_goes_on_bit_by_bit(tmp_path, after=1, **RUN, **paths)


def test_a_run_learns_from_them(folder: Path, tmp_path: Path, decoded: list[int]) -> None:
    losses = Watch()
    paths = {"DATA__TRAIN__DATA_PATHS": [str(folder)]}
    loop.run(make_task(tmp_path, [losses], **RUN, **paths))
    assert sum(decoded) >= COUNT
    assert len(set(losses.losses)) > 1


def test_a_run_in_bf16(folder: Path, tmp_path: Path) -> None:
    losses, exact = Watch(), Watch()
    fp32: dict[str, Any] = {**RUN, "DATA__TRAIN__DATA_PATHS": [str(folder)]}
    bf16 = {**fp32, "MACHINE__PRECISION": "bf16"}
    loop.run(make_task(tmp_path / "bf16", [losses], **bf16))
    loop.run(make_task(tmp_path / "fp32", [exact], **fp32))
    assert losses.losses != exact.losses
    assert losses.losses[0] == pytest.approx(exact.losses[0], rel=0.05)
