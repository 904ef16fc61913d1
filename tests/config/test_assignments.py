from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.config.compose import compose, overrides, sweep

VALUES: dict[str, tuple[Any, Any]] = {
    "a path with a comma": (Path("/tmp/x/c, d"), "/tmp/x/c, d"),
    "a path": (PurePosixPath("runs/mine"), "runs/mine"),
    "paths": ([Path("/a b"), "c,d"], ["/a b", "c,d"]),
    "an int of numpy": (np.int64(3), 3),
    "a float of numpy": (np.float32(0.5), 0.5),
    "a truth of numpy": (np.bool_(True), True),
    "a text of numpy": (np.str_("a, b"), "a, b"),
    "an array": (np.array([1, 2]), [1, 2]),
    "a tensor": (torch.tensor(2), 2),
    "in a dict": ({"a": np.int64(1), "b": Path("c, d")}, {"a": 1, "b": "c, d"}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_python_is_one_value_of_the_config(kind: str) -> None:
    given, expected = VALUES[kind]
    (words,) = sweep(["config=quickstart/simclr", *overrides({"CHECKPOINT.DIR": given})])
    found = compose(words).last_value("config.CHECKPOINT.DIR")
    assert found == expected
    assert type(found) is type(expected)
