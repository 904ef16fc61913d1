from __future__ import annotations

import torch

from sslengine.config.components import argument_problems
from sslengine.models.heads.identity import Identity


def test_gives_what_it_gets_and_takes_no_arguments() -> None:
    x = torch.randn(2, 3)
    assert Identity()(x) is x
    assert argument_problems(Identity, {"dims": [2]}, "PARAMS")
