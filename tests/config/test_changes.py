from __future__ import annotations

from typing import Any

import pytest

from sslengine.config.resolve import settled
from sslengine.config.show import show
from sslengine.config.stored import Change, as_stored, changes, is_fixed
from tests.config.recipes import resolved


def _between(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    new = resolved(**now)
    now_stored = as_stored(new.config, new.texts)
    return changes(show(resolved(**before)), now_stored, new.origins)


def test_a_change_tells_both_values() -> None:
    (change,) = _between({}, {"OPTIMIZER__num_epochs": 7})
    assert str(change) == "config.OPTIMIZER.num_epochs: 2 -> 7"
    assert change.allowed


@pytest.mark.parametrize(
    ("now", "allowed"),
    [
        ({"LOG_FREQUENCY": 3}, True),
        ({"DATA__NUM_DATALOADER_WORKERS": 3}, True),
        ({"MODEL__ACTIVATION_CHECKPOINTING__USE_ACTIVATION_CHECKPOINTING": True}, True),
        ({"MODEL__TRUNK__RESNETS__DEPTH": 50}, False),
        ({"LOSS__simclr_info_nce_loss__temperature": 0.77}, False),
        ({"OPTIMIZER__name": "adamw"}, False),
    ],
)
def test_what_may_change(now: dict[str, Any], allowed: bool) -> None:
    found = _between({}, now)
    assert found
    assert all(each.allowed for each in found) == allowed


def test_a_head_whose_width_is_auto() -> None:
    def settled_run(**more: Any) -> Any:
        head = [["mlp", {"dims": [32, 8], **more}]]
        return settled(resolved(), "MODEL.HEAD.PARAMS", head, "auto: the widths of the features")

    before, now = settled_run(), settled_run(use_relu=True)
    stored = as_stored(now.config, now.texts)
    assert changes(show(now), stored, now.origins) == []
    (change,) = changes(show(before), stored, now.origins)
    assert (change.path, change.allowed) == ("MODEL.HEAD.PARAMS", False)


def test_how_a_memory_is_kept_may_change() -> None:
    assert not is_fixed("LOSS.nce_loss_with_memory.memory_params.sharded")
    assert is_fixed("LOSS.nce_loss_with_memory.memory_params.embedding_dim")


def test_where_it_lives_and_what_follows_from_other_values_are_no_change() -> None:
    assert _between({}, {"CHECKPOINT__DIR": "elsewhere", "CHECKPOINT__KEEP_LAST": 3}) == []
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": 2, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    assert {each.path for each in _between({}, ranks)} == {
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA",
        "DISTRIBUTED.NUM_PROC_PER_NODE",
    }


def test_a_key_that_came_or_went() -> None:
    new = resolved()
    text = "config: {GONE: 1}"
    found = {each.path: each for each in changes(text, new.config, new.origins)}
    assert str(found["GONE"]) == "config.GONE: 1 -> not set"
    assert found["LOG_FREQUENCY"].before == "not set"


def test_a_key_that_came_is_a_change_only_if_it_is_given() -> None:
    """As of a run that an earlier version began, whose schema was without the key."""
    default = resolved()
    old = "".join(line for line in show(default).splitlines(True) if "INPUT_TYPE" not in line)
    assert changes(old, as_stored(default.config, default.texts), default.origins) == []
    given = resolved(MODEL__INPUT_TYPE="bgr")
    (change,) = changes(old, as_stored(given.config, given.texts), given.origins)
    assert (str(change), change.allowed) == ("config.MODEL.INPUT_TYPE: not set -> bgr", False)


def test_a_key_that_nothing_read_may_go() -> None:
    new = resolved()
    old = show(new).replace("XCIT:", "XCIT:\n        QK_SCALE: false", 1)
    old = old.replace("config:\n  ", "config:\n  RANKING: {A: {B: 1}}\n  ", 1)
    assert "QK_SCALE: false\n        IMAGE_SIZE" in old
    assert changes(old, as_stored(new.config, new.texts), new.origins) == []
