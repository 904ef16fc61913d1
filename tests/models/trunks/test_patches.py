from __future__ import annotations

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.models.trunks.patches import patch_grid, set_attention_scale


def test_patch_grid() -> None:
    assert patch_grid(torch.zeros(1, 3, 32, 48), 16, "BEIT") == (2, 3)
    for size in ((32, 47), (31, 48)):
        with pytest.raises(ConfigError, match=r"TRUNK\.BEIT\.PATCH_SIZE: 16 does not divide"):
            patch_grid(torch.zeros(1, 3, *size), 16, "BEIT")


def test_set_attention_scale() -> None:
    class Attention:
        fused_attn, scale = True, 0.5

    attentions = [Attention(), Attention()]
    set_attention_scale(attentions, 2.0)
    assert all((each.fused_attn, each.scale) == (False, 2.0) for each in attentions)
