from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.trunks.base import Trunk


class Powers(Trunk):
    feature_names = ("first", "second", "third")

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {name: x ** (1 + self.feature_names.index(name)) for name in wanted}


X = torch.tensor([2.0, 3.0])


def values(features: list[Tensor]) -> list[list[float]]:
    return [feature.tolist() for feature in features]


def test_the_last_name_is_the_final_feature() -> None:
    assert values(Powers()(X)) == [[8.0, 27.0]]


def test_features_come_in_the_order_asked_for_and_may_repeat() -> None:
    features = Powers()(X, ["third", "first", "third"])
    assert values(features) == [[8.0, 27.0], [2.0, 3.0], [8.0, 27.0]]


def test_features_are_computed_in_the_order_asked_for() -> None:
    """The order of a set of names, and so that of sums of gradients, differs between processes."""

    class Many(Powers):
        feature_names = tuple(f"last{letter}" for letter in "HBFDGACE")

        def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
            asked.extend(wanted)
            return super().features(x, wanted)

    asked: list[str] = []
    Many()(X, [*Many.feature_names, "lastB"])
    assert asked == list(Many.feature_names)


def test_an_unknown_feature_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no feature 'secnd'\. Did you mean 'second'\?") as error:
        Powers()(X, ["secnd"])
    assert "Known: first, second, third" in str(error.value)
    with pytest.raises(ConfigError, match=r"^config\.SOME\.KEY: "):
        Powers().check_features(["nothing"], "config.SOME.KEY")


def test_a_trunk_that_cannot_recompute_says_so() -> None:
    with pytest.raises(ConfigError, match="ACTIVATION_CHECKPOINTING: Powers cannot recompute"):
        Powers().checkpoint_activations(2)
