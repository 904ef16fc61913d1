"""From files that other programs write to the trunk: every value arrives, or the run does not start.

All through `launch`, as the command does it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from sslengine.config.facts import why_not
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.launch.local import launch
from sslengine.models.trunks.library import LibraryTrunk
from tests.config.recipes import resolved
from tests.data.deep_files import numbers, png, tiff

Files = list[np.ndarray]
COUNT, SIDE = 4, 8


def run(tmp_path: Path, transforms: list[dict[str, Any]] | None = None, **keys: Any) -> Path:
    made = resolved(
        DATA__TRAIN__DATA_SOURCES=["disk_folder"],
        DATA__TRAIN__DATA_PATHS=[str(tmp_path / "images")],
        DATA__TRAIN__DATA_LIMIT=-1,
        DATA__TRAIN__BATCHSIZE_PER_REPLICA=2,
        DATA__TRAIN__TRANSFORMS=[
            {"name": "ImgReplicatePil"},
            *(transforms or [{"name": "ToTensor"}]),
        ],
        OPTIMIZER__num_epochs=1,
        CHECKPOINT__DIR=str(tmp_path / "run"),
        CHECKPOINT__EXPORT_AT_END=False,  # it runs the trunk too
        **keys,
    )
    launch(made)
    return tmp_path / "run"


def write(root: Path, kind: str) -> Files:
    (root / "images").mkdir()
    shape, dtype = {
        "png_16": ((COUNT, SIDE, SIDE, 1), np.uint16),
        "tiff_4": ((COUNT, SIDE, SIDE, 4), np.uint16),
        "tiff_13": ((COUNT, SIDE, SIDE, 13), np.float32),
        "tiff_signed": ((COUNT, SIDE, SIDE, 1), np.int16),
    }[kind]
    values = list(numbers(shape, dtype))
    for number, image in enumerate(values):
        if kind == "png_16":
            (root / "images" / f"{number}.png").write_bytes(png(image, 0))
        elif kind == "tiff_13":
            order = {"planarconfig": "separate"}
            encoded = tiff(np.moveaxis(image, -1, 0), **order)
            (root / "images" / f"{number}.tif").write_bytes(encoded)
        else:
            order = {"planarconfig": "contig"} if image.shape[2] > 1 else {}
            encoded = tiff(image if order else image[..., 0], **order)
            (root / "images" / f"{number}.tif").write_bytes(encoded)
    return values


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What the trunk gets."""
    seen: list[torch.Tensor] = []
    forward: Callable[..., Any] = LibraryTrunk.forward

    def spy(self: LibraryTrunk, x: torch.Tensor, *more: Any) -> Any:
        seen.append(x.detach().clone())
        return forward(self, x, *more)

    monkeypatch.setattr(LibraryTrunk, "forward", spy)
    return seen


@pytest.mark.parametrize("kind", ["png_16", "tiff_4", "tiff_13", "tiff_signed"])
def test_two_steps_on_the_values_of_the_files(
    kind: str, tmp_path: Path, reached: list[torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    files = write(tmp_path, kind)
    folder = run(tmp_path, DATA__TRAIN__IMAGE_MODE="stored")
    channels = files[0].shape[2]
    first, second = (batch.double() for batch in reached)
    assert first.shape == second.shape == (4, channels, SIDE, SIDE)
    images = torch.cat([first[:2], second[:2]])
    assert torch.equal(torch.cat([first[2:], second[2:]]), images)  # the other views
    order = [int(np.argmin([abs(each.sum() - float(image.sum())) for image in map(np.double, files)]))
             for each in images]  # fmt: skip
    assert sorted(order) == list(range(COUNT))
    for image, number in zip(images, order, strict=True):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), files[number])
    said = f"config.DATA.TRAIN: {channels} channel"
    assert said in capsys.readouterr().out
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert kept["config"]["MODEL"]["INPUT_CHANNELS"] == channels


SIMCLR = [
    {"name": "RandomResizedCrop", "size": 6}, {"name": "RandomHorizontalFlip"},
    {"name": "RandomApply", "p": 0.8, "transforms": [
        {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8}]},
    {"name": "ImgPilGaussianBlur"}, {"name": "GaussianNoise"}, {"name": "ChannelDrop"},
]  # fmt: skip
# What draws nothing that matters: the same for each image.
FIXED = [
    {"name": "RandomHorizontalFlip", "p": 1.0},
    {"name": "ColorJitter", "brightness": [1.5, 1.5]},
    {"name": "ColorJitter", "contrast": [0.5, 0.5]},
]


@pytest.mark.parametrize("kind", ["png_16", "tiff_4", "tiff_13"])
@pytest.mark.parametrize("backend", ["pil", "numba"])
def test_simclrs_list_and_its_values(
    kind: str, backend: str, tmp_path: Path, reached: list[torch.Tensor]
) -> None:
    if why_not(backend):
        pytest.skip(why_not(backend))
    files = write(tmp_path, kind)
    keys = {"DATA__TRAIN__IMAGE_MODE": "stored", "DATA__AUGMENT_BACKEND": backend}
    tensor = {"name": "ToTensor"}
    run(tmp_path, [*SIMCLR, tensor], **keys)
    assert [each.shape for each in reached] == [(4, files[0].shape[2], 6, 6)] * 2
    assert not torch.equal(*(reached[0][start : start + 2] for start in (0, 2)))
    del reached[:]
    run(tmp_path, [*FIXED, tensor], CHECKPOINT__APPEND_DISTR_RUN_ID=False,
        CHECKPOINT__OVERWRITE_EXISTING=True, **keys)  # fmt: skip
    brighter = [1.5 * image[:, ::-1].astype(np.float64) for image in files]
    expected = sorted(
        (image.mean() + 0.5 * (image - image.mean()) for image in brighter), key=np.sum
    )
    made = sorted((each.double().permute(1, 2, 0).numpy() for each in torch.cat(reached)),
                  key=np.sum)  # fmt: skip
    for view, image in zip(made, [each for each in expected for _ in "12"], strict=True):
        np.testing.assert_allclose(view, image, rtol=1e-5, atol=1e-5 * np.abs(image).max())


def test_grey_levels_alone_train_a_trunk_of_one_channel(
    tmp_path: Path, reached: list[torch.Tensor]
) -> None:
    write(tmp_path, "png_16")
    window = {"DATA__TRAIN__IMAGE_MODE": "L", "DATA__TRAIN__PIXEL_RANGE": [0, 65535]}
    views = [{"name": "RandomHorizontalFlip"}, {"name": "ToTensor"},
             {"name": "Normalize", "mean": [0.5], "std": [0.5]}]  # fmt: skip
    run(tmp_path, views, **window)
    assert {tuple(batch.shape) for batch in reached} == {(4, 1, SIDE, SIDE)}


JITTER = {"name": "ColorJitter", "brightness": 0.4}
REFUSED: list[tuple[str, dict[str, Any], type[SSLEngineError], str]] = [
    ("png_16", {}, ConfigError, r"\d.png: .*type uint16, from \d+ to \d+.*PIXEL_RANGE"),
    ("tiff_signed", {}, ConfigError, r"type int16, from -\d+ to \d+.*TRAIN.PIXEL_RANGE"),
    ("tiff_4", {}, ConfigError, r"4 bands.*IMAGE_MODE to stored"),
    ("tiff_4", {"DATA__TRAIN__IMAGE_MODE": "stored", "MODEL__INPUT_CHANNELS": 3}, ConfigError,
     r"INPUT_CHANNELS: the trunk 3, .*TRAIN 4"),
    ("tiff_13", {"DATA__TRAIN__IMAGE_MODE": "stored", "transforms": [
        {"name": "ToTensor"}, {"name": "Normalize", "mean": [0, 0, 0], "std": [1, 1, 1]}]},
     ConfigError, r"TRANSFORMS.2 \(Normalize\) .*13"),
    ("tiff_13", {"DATA__TRAIN__IMAGE_MODE": "stored", "transforms": [
        {"name": "ToTensor"}, {"name": "RandomApply", "transforms": [JITTER]}]},
     ConfigError, r"TRANSFORMS.2 \(RandomApply\).*13"),
    ("tiff_13", {"DATA__TRAIN__IMAGE_MODE": "stored", "transforms": [{"name": "RandomRotation",
      "degrees": 9}]}, ConfigError, r"TRANSFORMS.1 \(RandomRotation\)"),
    ("png_16", {"DATA__TRAIN__IMAGE_MODE": "stored", "transforms": [
        {"name": "RandomGrayscale", "p": 0.1}, {"name": "ToTensor"}]},
     ConfigError, r"TRANSFORMS.1 \(RandomGrayscale\).*Grey asks for RGB: remove it"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "keys", "error", "message"), REFUSED)
def test_told_before_the_launch(
    kind: str, keys: dict[str, Any], error: type[Exception], message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(tmp_path, kind)
    monkeypatch.setattr("sslengine.launch.local.run_rank", lambda *_, **__: pytest.fail("launched"))
    with pytest.raises(error, match=message):
        run(tmp_path, **keys)


def test_8_bits_need_no_word(tmp_path: Path, reached: list[torch.Tensor]) -> None:
    (tmp_path / "images").mkdir()
    image = numbers((SIDE, SIDE, 3), np.uint8)
    for number in range(COUNT):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    run(tmp_path)
    expected = torch.from_numpy(image).permute(2, 0, 1).float().div(255).expand(4, -1, -1, -1)
    assert torch.equal(reached[0], expected)
