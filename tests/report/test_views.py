"""What a network gets of training images, and what it makes of them, as pictures."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.engines.train import train
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.report import make_parts as module
from sslengine.report.content import Views
from sslengine.report.make_parts import make_live_parts, make_parts
from sslengine.report.parts import read_parts
from sslengine.report.views_of_images import (
    draw_masked,
    draw_views,
    open_training,
    principal_colours,
    recorded_attention,
)
from tests.config.recipes import resolved
from tests.engines.runs import make_run
from tests.methods.whole_steps import method_of
from tests.report.image_runs import EACH, PATCH, PLAIN, SIDE, VIT, on_disk, write_classes

ONE_VIEW = {"DATA__TRAIN__TRANSFORMS": PLAIN, "LOSS": {"name": "CrossEntropyLoss"}}
PATCHES = (SIDE // PATCH) ** 2
MAE: dict[str, Any] = {
    "MODEL__BASE_MODEL_NAME": "mae",
    "MODEL__mae": {"DECODER_DIM": 16, "DECODER_LAYERS": 1, "DECODER_HEADS": 2},
    "MODEL__HEAD__PARAMS": [], "MODEL__TRUNK": VIT, "LOSS": {"name": ""},
    "TRAINER__TRAIN_STEP_NAME": "model_train_step", "DATA__TRAIN__TRANSFORMS": PLAIN,
    "DATA__TRAIN__COLLATE_FUNCTION": "patch_noise_collator",
    "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": PATCH},
    "DATA__TRAIN__INPUT_KEY_NAMES": ["data", "noise"],
}  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("seen") / "images", EACH)


def _pixels(uri: str) -> np.ndarray[Any, Any]:
    encoded = BytesIO(base64.b64decode(uri.partition(",")[2]))
    return np.asarray(Image.open(encoded).convert("RGB"), dtype=float)


def _titled(views: Any, title: str) -> list[Views]:
    return [each for each in views if title in each.titles]


def test_views_are_those_of_the_first_epochs(images: Path) -> None:
    run = resolved(**on_disk(images))
    dataset = open_training(run)
    found = draw_views(dataset, read(run.config, DataOptions).TRAIN)
    assert [each.name for each in found] == [f"blue/{each}.png" for each in (0, 2, 5)] + [
        f"red/{each}.png" for each in (0, 2, 5)
    ]
    for row, number in zip(found, (0, 2, 5, 8, 10, 13)):
        drawn = [view for epoch in (0, 1) for view in dataset[epoch, number]["data"]]
        assert len(row.views) == len(drawn) == 4
        for uri, view in zip(row.views, drawn):
            np.testing.assert_allclose(_pixels(uri), 255 * view.movedim(0, -1), atol=0.51)
        assert _pixels(row.original).shape == (20, 24, 3)


HIDING: dict[str, tuple[dict[str, Any], float]] = {
    "a transform": (
        {**ONE_VIEW, "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
         "DATA__TRAIN__TRANSFORMS": [*PLAIN, {"name": "RandomPatchMask", "patch_size": PATCH,
                                              "cell_size": 8, "ratio": 0.5}]},
        0.5),
    "all but shown patches": (
        {**ONE_VIEW, "DATA__TRAIN__COLLATE_FUNCTION": "visible_block_collator",
         "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": PATCH, "hidden": 0.75,
                                                  "predicted": 0.5}},
        0.75),
    "one of two views": (
        {"DATA__TRAIN__COLLATE_FUNCTION": "spread_masks_collator",
         "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": 4, "masked_views": 1.0,
                                                  "shares": [0.5, 0.5], "smallest_block": 1}},
        0.5),
}  # fmt: skip


@pytest.mark.parametrize("kind", HIDING)
def test_hidden_patches_are_grey(images: Path, kind: str) -> None:
    changes, share = HIDING[kind]
    run = resolved(**{**on_disk(images), **changes})
    found = draw_masked(open_training(run), read(run.config, DataOptions).TRAIN, None)
    assert len(found) == 6
    for each in found:
        assert [*each.titles] == ["input", "hidden patches"]
        given, hidden = map(_pixels, each.views)
        grey = (np.abs(hidden - 128) <= 1).all(axis=2)
        assert grey.mean() == pytest.approx(share)
        np.testing.assert_array_equal(given[~grey], hidden[~grey])


def test_nothing_is_hidden_of_other_methods(images: Path) -> None:
    run = resolved(**on_disk(images))
    assert draw_masked(open_training(run), read(run.config, DataOptions).TRAIN, None) == []


def test_a_masked_autoencoder_shows_what_it_reconstructs(images: Path, tmp_path: Path) -> None:
    """At the end of its training: no map, and all else from the images and the checkpoint."""
    run = make_run(tmp_path, **{**MAE, **on_disk(images), "OPTIMIZER__num_epochs": 1})
    train(run)
    notes: list[str] = []
    parts = make_live_parts(run.resolved, tmp_path, notes)
    assert (notes, parts.map) == ([], None)
    assert parts.data[0].what == "training images"
    assert parts.data[0].value == "16"
    found = _titled(parts.views, "reconstruction")
    assert len(found) == 6
    assert len(_titled(parts.views, "patches by three components")) == 8
    for each in found:
        given, hidden, made = map(_pixels, each.views)
        shown = (given == hidden).all(axis=2)
        assert shown.mean() == pytest.approx(0.25, abs=0.02)
        np.testing.assert_array_equal(made[shown], given[shown])
        assert (made != hidden).any(axis=2)[~shown].mean() > 0.9
    assert make_parts(tmp_path, trust_config=False, notes=notes).views == parts.views


def test_what_is_reconstructed_is_drawn_where_it_is_hidden() -> None:
    pictures = torch.rand(2, 3, SIDE, SIDE)
    exact = nn.functional.pixel_unshuffle(pictures, PATCH).flatten(2).mT
    mask = torch.rand(2, 4, 4) < 0.5
    method = method_of(
        MODEL__TRUNK=VIT, MODEL__HEAD__PARAMS=[], LOSS={"name": "simmim_loss", "stride": PATCH}
    )
    method._painted = pictures, exact, mask
    panels = method.picture(2)
    assert panels.shape == (2, 3, 3, SIDE, SIDE)
    torch.testing.assert_close(panels[:, 2], pictures)
    large = mask.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[:, None]
    grey = pictures.mean(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(panels[:, 1], torch.where(large, grey, pictures))


def _trunk() -> Any:
    tree = resolved(MODEL__TRUNK=VIT, MODEL__HEAD__PARAMS=[["mlp", {"dims": [24, 8]}]]).config
    torch.manual_seed(0)
    return build_trunk(read(tree, ModelOptions)).eval()


def test_attention_is_that_of_the_last_block() -> None:
    trunk, seen = _trunk(), []
    attention = trunk.blocks[-1].attn
    attention.fused_attn = False  # then its weights pass through a dropout
    attention.attn_drop.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad(), recorded_attention(trunk) as found:
        trunk(torch.rand(2, 3, SIDE, SIDE), ["lastPATCH"])
    torch.testing.assert_close(found[0], seen[0][:, :, 0].mean(dim=1))
    assert found[0].shape == (2, 1 + PATCHES)


def test_colours_are_components_whatever_their_sign() -> None:
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(8, 3, generator=draw)).Q
    scores = torch.randn(4, 25, 3, generator=draw) * torch.tensor([9.0, 3.0, 1.0])
    colours = principal_colours(scores @ basis.T)
    assert colours.shape == (4, 25, 3)
    assert colours.min() >= 0
    assert colours.max() <= 1
    for each in range(3):
        pair = torch.stack([colours[..., each].flatten(), scores[..., each].flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) > 0.95
    torch.testing.assert_close(principal_colours(scores @ basis.T), colours)


def test_what_cannot_be_made_is_a_note(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, **on_disk(images), OPTIMIZER__num_epochs=1)
    train(run)

    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(module, "draw_patches", fail)
    notes: list[str] = []
    parts = make_live_parts(run.resolved, tmp_path, notes)
    assert notes == ["patches: not made: MemoryError"]
    assert len(parts.views) == 6
    assert parts.data
    assert read_parts(tmp_path) == parts
