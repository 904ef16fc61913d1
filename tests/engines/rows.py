"""What every row of evaluation.json says of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sslengine.evaluate.outcome import VERSIONS

OF_FEATURES = {"layer", "view", "images", "seeds", "number_of_seeds", "versions", "published"}
OF_NETWORK = {"network", "weights", "weights_sha256", "trunk", "pooling"}
OF_PROTOCOL = {"protocol", "version", "seeds", "number_of_seeds", "chosen_on"}
OF_TRAINED = OF_PROTOCOL | {
    "features", "network", "weights", "weights_sha256", "trunk", "layer", "view", "train_view",
}  # fmt: skip


def expect_complete(report: Mapping[str, Any]) -> None:
    """Protocol and version, network, weights, layer, pooling, view, what chose, seeds."""
    for score in report["scores"]:
        about = score["about"]
        wanted = OF_FEATURES | (set() if score["features"] == "raw pixels" else OF_NETWORK)
        assert wanted - {"weights", "network"} <= {*about}, score["features"]
        assert score["features"] != "trained" or wanted <= {*about}
        assert about["versions"] == {name: VERSIONS[name] for name in about["versions"]}
        _expect_seeds(about)
        assert score["linear"] is None or about["chosen_on"]["linear"]
        for name, row in score["protocols"].items():
            assert {*row} >= OF_PROTOCOL, name
            assert (row["protocol"], row["version"]) == (name, VERSIONS[name])
            _expect_seeds(row)
    for row in (*report["swept"], *report["finetuned"]):
        assert {*row} >= OF_TRAINED
        _expect_seeds(row)
    for view in _views(report):
        for each in view:
            assert each["name"] not in ("Resize", "RandomResizedCrop") or each["interpolation"]


def _expect_seeds(row: Mapping[str, Any]) -> None:
    assert len(row["seeds"]) == row["number_of_seeds"] > 0
    assert all(isinstance(each, int) for each in row["seeds"])


def _views(tree: Any) -> list[Any]:
    if isinstance(tree, list):
        return [view for each in tree for view in _views(each)]
    if not isinstance(tree, Mapping):
        return []
    own = [value for key, value in tree.items() if key in ("view", "train_view")]
    return own + [view for value in tree.values() for view in _views(value)]
