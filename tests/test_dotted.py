from __future__ import annotations

from sslengine.dotted import below, leaves

TREE = {"loss": 1.0, "acc": {"top_1": {0: 50.0, 1: 60.0}}, "a.b": 2.0}


def test_leaves_have_the_joined_names() -> None:
    assert dict(leaves(TREE)) == {
        "loss": 1.0, "acc.top_1.0": 50.0, "acc.top_1.1": 60.0, "a.b": 2.0,
    }  # fmt: skip
    assert "acc/top_1/0" in dict(leaves(TREE, "/"))


def test_a_place_or_the_default() -> None:
    assert below({"a": {"b": {"c": 1}}}, ["a", "b"]) == {"c": 1}
    assert below({"a": 1}, ["a", "b"], "nothing") == "nothing"
