from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from sslengine.models.trunks.base import Trunk
from sslengine.models.vissl_names import from_vissl, to_vissl


class Toy(Trunk):
    """Joins two tensors, and gives to one of its own names another meaning."""

    feature_names = ("flatten",)
    vissl_constants = r"index$"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(2, 3), nn.Linear(2, 1)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {}

    def vissl_name(self, name: str) -> str:
        module, _, kind = name.partition(".")
        theirs = {"q": "qk", "k": "qk", "first": "zeroth", "second": "first"}
        return f"_feature_blocks.{theirs[module]}.{kind}"


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_there_and_back() -> None:
    trunk = Toy()
    theirs = to_vissl(trunk)
    assert sorted({name.split(".")[1] for name in theirs}) == ["first", "qk", "zeroth"]
    torch.testing.assert_close(
        theirs["_feature_blocks.qk.weight"], torch.cat([trunk.q.weight, trunk.k.weight])
    )
    assert theirs["_feature_blocks.first.weight"] is not trunk.first.weight
    torch.testing.assert_close(theirs["_feature_blocks.first.weight"], trunk.second.weight)
    assert equal(from_vissl(trunk, theirs), trunk.state_dict())


def test_the_block_of_blocks_may_be_left_out() -> None:
    trunk = Toy()
    bare = {name.removeprefix("_feature_blocks."): t for name, t in to_vissl(trunk).items()}
    assert equal(from_vissl(trunk, bare), trunk.state_dict())


def test_own_names_are_left_alone() -> None:
    """Also if something is missing: half-renamed it would load what belongs elsewhere."""
    trunk = Toy()
    own = trunk.state_dict()
    assert equal(from_vissl(trunk, own), own)
    del own["q.bias"], own["second.bias"]
    assert equal(from_vissl(trunk, own), own)


def test_what_fits_nowhere_keeps_its_name() -> None:
    trunk = Toy()
    strange = {
        **to_vissl(trunk),
        "strange.weight": torch.zeros(1),
        "_feature_blocks.qk.weight": torch.zeros(7, 2),
        "qk.position_index": torch.zeros(2),
    }
    back = from_vissl(trunk, strange)
    assert {"strange.weight", "qk.weight"} < back.keys()
    assert not {"q.weight", "k.weight", "qk.position_index"} & back.keys()
    assert "q.bias" in back
