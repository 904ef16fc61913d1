"""The shapes of a run before it is launched: what is told, and what is left to the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.config.resolve import resolve
from sslengine.errors import ConfigError
from sslengine.launch.preflight import expect_fitting_shapes, first_batch
from sslengine.models.trunks.base import Trunk
from sslengine.registry import register_transform, register_trunk
from tests.config.recipes import RECIPE, resolved

TRANSFORMS: list[dict[str, Any]] = RECIPE["DATA"]["TRAIN"]["TRANSFORMS"]
FILES = {"DATA__TRAIN__DATA_SOURCES": ["disk_folder"], "DATA__TRAIN__DATA_PATHS": ["/no/folder"],
         "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": False}  # fmt: skip


def _expect(**changes: Any) -> None:
    expect_fitting_shapes(resolved(**changes).config)


def _with(*transforms: dict[str, Any]) -> list[dict[str, Any]]:
    return [*TRANSFORMS, *transforms]


def test_a_run_that_fits_is_left_in_peace() -> None:
    before = torch.get_rng_state()
    _expect()
    _expect(**FILES)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MODEL__HEAD__PARAMS": [["mlp", {"dims": [31, 8]}]]}, r"HEAD.PARAMS: .*\[31, ...\].*\(4, 32\)"),
        ({"MODEL__HEAD__PARAMS": [["swav_head", {"dims": [31, 8], "num_clusters": [3]}]]}, r"HEAD.PARAMS"),
        ({"MODEL__TRUNK__NAME": "vision_transformer",
          "MODEL__TRUNK__VISION_TRANSFORMERS": {"IMAGE_SIZE": 32, "PATCH_SIZE": 16, "NUM_LAYERS": 1,
                                                "NUM_HEADS": 1, "HIDDEN_DIM": 8, "MLP_DIM": 8},
          "MODEL__HEAD__PARAMS": [["mlp", {"dims": [9, 8]}]]}, r"HEAD.PARAMS: .*\(4, 8\)|PATCH|8 x 8"),
        ({"DATA__TRAIN__TRANSFORMS": _with({"name": "Normalize", "mean": [0.5], "std": [1, 1]})},
         r"config.DATA.TRAIN.TRANSFORMS.4 \(Normalize\): RuntimeError"),
        ({"DATA__TRAIN__TRANSFORMS": _with({"name": "Resize", "size": "ninety"})},
         r"config.DATA.TRAIN.TRANSFORMS.4 \(Resize\)"),
        ({"DATA__TRAIN__TRANSFORMS": _with({"name": "ImgPilGaussianBlur", "p": 1.0})},
         r"config.DATA.TRAIN.TRANSFORMS.4 \(ImgPilGaussianBlur\)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", [{}, FILES], ids=["made", "files"])
def test_what_is_told_before_data_is_read(
    changes: dict[str, Any], said: str, source: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){said}"):
        _expect(**changes, **source)


def test_the_test_set_is_looked_at_too() -> None:
    test = {"DATA_SOURCES": ["synthetic"], "TRANSFORMS": [{"name": "CenterCrop", "size": "big"},
                                                         {"name": "ToTensor"}]}  # fmt: skip
    _expect(DATA__TEST=test)  # there are no test phases
    with pytest.raises(ConfigError, match=r"config.DATA.TEST.TRANSFORMS.0 \(CenterCrop\)"):
        _expect(DATA__TEST=test, TEST_MODEL=True)


def test_a_crop_larger_than_any_image_is_told_of_images_whose_size_is_known() -> None:
    crop = [{"name": "RandomCrop", "size": 900}, {"name": "ToTensor"}]
    batch = {"DATA__TRAIN__COLLATE_FUNCTION": "default_collate", "LOSS__name": "CrossEntropyLoss"}
    with pytest.raises(ConfigError, match="larger than input image size"):
        _expect(DATA__TRAIN__TRANSFORMS=crop, **batch)
    _expect(DATA__TRAIN__TRANSFORMS=[{"name": "RandomCrop", "size": 700}, crop[1]],
            **{**FILES, **batch})  # fmt: skip


def test_where_the_files_decide_on_the_size_nothing_is_said_of_it() -> None:
    train = resolved(
        **FILES, DATA__TRAIN__COLLATE_FUNCTION="default_collate", LOSS__name="CrossEntropyLoss",
        DATA__TRAIN__TRANSFORMS=[{"name": "ToTensor"}],
    ).config.DATA.TRAIN  # fmt: skip
    assert first_batch(train, "TRAIN") is None


@register_transform("preflight_test_transform")
class _Own:
    called = 0

    def __call__(self, image: Any) -> Any:
        type(self).called += 1
        return image


def test_transforms_of_the_users_are_not_run() -> None:
    _expect(DATA__TRAIN__TRANSFORMS=_with({"name": "preflight_test_transform"}))
    assert _Own.called == 0


@register_trunk("preflight_test_trunk")
class _ReadsValues(Trunk):
    feature_names = ("flatten",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def features(self, x: Any, wanted: Any) -> Any:
        return {"flatten": x.mean((1, 2, 3)).item()}


def test_a_trunk_that_needs_values_is_left_to_the_run() -> None:
    _expect(MODEL__TRUNK__NAME="preflight_test_trunk")


def test_no_memory_is_taken_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 billion of them: 320 GB."""
    vit = {"IMAGE_SIZE": 16, "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 1,
           "HIDDEN_DIM": 65536, "MLP_DIM": 262144}  # fmt: skip
    run = {"MODEL__TRUNK__NAME": "vision_transformer", "MODEL__TRUNK__VISION_TRANSFORMERS": vit}
    with pytest.raises(ConfigError, match="65536"):
        _expect(**run)  # the head has 32


@pytest.mark.parametrize("name", ["mae", "pirl", "dino", "npid++"])
def test_shipped_runs_fit(name: str) -> None:
    expect_fitting_shapes(resolve([f"config=quickstart/{name}"]).config)


class Heavy:
    def __init__(self) -> None:
        raise AssertionError("built before the launch")

    def __call__(self, image: Any) -> Any:
        return image


def test_a_transform_of_ones_own_is_not_even_built() -> None:
    _expect(DATA__TRAIN__TRANSFORMS=_with({"name": f"{__name__}:Heavy"}))
