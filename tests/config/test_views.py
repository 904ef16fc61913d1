from __future__ import annotations

from typing import Any

import pytest

from sslengine.config.resolve import resolve_dict
from sslengine.errors import ConfigError
from tests.config.recipes import recipe, resolved

APART = {"MODEL__VIEWS_APART": True}
ONE_VIEW = {
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "LOSS__name": "CrossEntropyLoss",
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
}


def test_views_that_one_tensor_holds_and_crops_in_a_list() -> None:
    assert resolved(**APART).config.MODEL.VIEWS_APART
    crops = {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "num_crops": [2, 1],
             "size_crops": [8, 4], "crop_scales": [[0.3, 1], [0.1, 0.5]]}  # fmt: skip
    resolved(
        **APART,
        DATA__TRAIN__TRANSFORMS=[crops, {"name": "ToTensor"}],
        DATA__TRAIN__COLLATE_FUNCTION="multicrop_collator",
        LOSS={"name": "multicrop_simclr_info_nce_loss"},
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (ONE_VIEW, "TRANSFORMS make one view"),
        (
            {"DATA__TRAIN__COLLATE_FUNCTION": "moco_collator", "LOSS__name": "moco_loss"},
            "COLLATE_FUNCTION must be simclr_collator or multicrop_collator, got 'moco_collator'",
        ),
        (
            {"MODEL__MULTI_INPUT_HEAD_MAPPING": [["data", ["flatten"]]]},
            "each input of MULTI_INPUT_HEAD_MAPPING",
        ),
        (
            {"MODEL__BASE_MODEL_NAME": "torch.nn:Identity"},
            "a custom model",
        ),
        (
            {"TRAINER__TRAIN_STEP_NAME": "gradcache_train_step"},
            "gradcache_train_step splits a batch into chunks",
        ),
    ],
)
def test_refused_where_it_would_do_nothing_or_harm(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config\.MODEL\.VIEWS_APART: .*{says}"):
        resolved(**APART, **changes)


def test_what_judges_a_trunk_reads_one_view_and_may_keep_the_key() -> None:
    resolve_dict(recipe(**APART, **ONE_VIEW), engine="evaluate")
