"""The extra input `shown` of vision transformers: all other patches are removed.

    shown       N x K numbers of patches. Others are removed after positions are added, as in masked
                autoencoders; rotary positions are those of the patches that stay.

timm's networks drop patches at random at one place, `patch_drop`; here the patches are given.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

SHOWN = "shown"


def can_show(network: nn.Module) -> bool:
    return isinstance(network, (VisionTransformer, Eva))


def add_shown(trunk: Any) -> None:
    """Give one of timm's vision transformers the extra input, and its `patch_size`, in pixels."""
    trunk.patch_drop = ShownPatches(trunk, trunk.patch_drop)
    trunk.patch_size = int(trunk.patch_embed.feat_ratio())
    trunk.extra_inputs = (*trunk.extra_inputs, SHOWN)


class ShownPatches(nn.Module):
    def __init__(self, trunk: Any, at_random: nn.Module | None) -> None:
        """at_random: timm's own, for passes that are not told what to show."""
        super().__init__()
        self.trunk: Any
        vars(self)["trunk"] = trunk  # not as a submodule: the trunk contains this module
        self.at_random = at_random
        self.tells_places = isinstance(trunk, Eva)

    def forward(self, tokens: Tensor) -> Any:
        """The tokens that stay; for EVA also their places, by which it chooses rotations."""
        shown = self.trunk.extra.get(SHOWN)
        if shown is None and self.at_random is not None:
            return self.at_random(tokens)
        kept = tokens if shown is None else keep(tokens, shown, self.trunk.num_prefix_tokens)
        return (kept, shown) if self.tells_places else kept


def keep(tokens: Tensor, shown: Tensor, before: int) -> Tensor:
    """N x T x D: the first `before` tokens, and the shown ones of the others."""
    patches = tokens[:, before:]
    kept = patches.gather(1, shown.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
    return torch.cat([tokens[:, :before], kept], dim=1)
