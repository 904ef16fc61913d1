"""Tokens of vision transformers: features by name, and a mask token for hidden patches.

    lastCLS     the class token, N x D
    lastREG     the register tokens (or a distillation token), N x R x D
    lastPATCH   the patches, N x L x D; with the extra input `patches_at` M x D
    lastBLK     all tokens: class token, registers, patches
    lastPOOL    the mean of the patches
    concatCLS{n}  the class tokens of the last n blocks, N x (n * D)

All are taken after the network's final norm. Extra inputs of the forward pass:

    mask        N x L or N x rows x columns, bool: a learned token replaces these patches, before
                positions are added. The trunk has the token after `take_input(trunk, MASK)`.
    patches_at  M numbers, image * L + patch: lastPATCH has these patches only
    shown       N x K numbers of patches: all others are removed after positions are added, as in
                masked autoencoders; rotary positions are those of the patches that stay
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.trunks.base import OUTPUT

if TYPE_CHECKING:
    from sslengine.models.trunks.library import Feature, LibraryTrunk

MASK, PATCHES_AT, SHOWN = "mask", "patches_at", "shown"


def take_input(trunk: Any, name: str, where: str = "config.MODEL.TRUNK.NAME") -> None:
    """Let the trunk take a further input, for `mask` by a parameter `mask_token`, 1 x D."""
    embed = getattr(trunk, "patch_embed", None)
    if name == MASK and MASK not in trunk.extra_inputs and _embeds_patches(embed):
        bias = [*embed.proj.parameters()][-1]
        trunk.mask_token = nn.Parameter(bias.new_zeros(1, len(bias)))
        trunk.extra_inputs = (*trunk.extra_inputs, MASK)
        embed.register_forward_hook(_Hide(trunk))
    if name not in trunk.extra_inputs:
        raise ConfigError(
            f"{where}: {type(trunk).__name__} takes no input {name!r}; vision_transformer and "
            f"timm's vision transformers take mask, patches_at and shown."
        )


def _embeds_patches(module: Any) -> TypeGuard[Any]:
    from timm.layers.hybrid_embed import HybridEmbed  # the import takes a second
    from timm.layers.patch_embed import PatchEmbed

    return isinstance(module, (PatchEmbed, HybridEmbed))


class _Hide:
    """A forward hook on the patch embedding; an object, so that a deep copy of the trunk has it."""

    def __init__(self, trunk: LibraryTrunk) -> None:
        self.trunk = trunk

    def __call__(self, module: nn.Module, inputs: Any, patches: Tensor) -> Tensor | None:
        """patches: N x L x D, or N x rows x columns x D."""
        mask = self.trunk.extra.get(MASK)
        if mask is None:
            return None
        token: Any = self.trunk.mask_token
        images, count = len(patches), patches[0, ..., 0].numel()
        if len(mask) != images or mask.numel() != images * count:
            raise ConfigError(
                f"{self.trunk.section}: a mask of shape {tuple(mask.shape)} for {images} images of "
                f"{count} patches; the patch size of the masks and of the trunk must be equal."
            )
        hidden = mask.view(*patches.shape[:-1], 1)
        return torch.where(hidden, token.to(patches.dtype), patches)


def is_token_network(network: Any) -> bool:
    """Whether timm's network is a row of blocks on class token, registers and patches."""
    return all(hasattr(network, name) for name in ("num_prefix_tokens", "patch_embed", "blocks"))


def token_features(network: Any, make: type[Feature]) -> dict[str, Feature]:
    """The features of one of timm's vision transformers, read after its final norm."""
    classes = int(getattr(network, "cls_token", None) is not None)
    kinds = ["CLS"] * classes + ["REG"] * (network.num_prefix_tokens > classes)
    blocks = [f"{OUTPUT}blocks.{number}" for number in range(len(network.blocks) * classes)]
    of_blocks = {
        f"concatCLS{count}": make(tuple(blocks[-count:]), _class_tokens)
        for count in range(1, len(blocks) + 1)
    }
    return of_blocks | {
        f"last{kind}": make(("norm",), partial(_read, kind=kind))
        for kind in (*kinds, "PATCH", "BLK", "POOL")
    }


def _read(trunk: Any, outputs: Sequence[Tensor], x: Tensor, *, kind: str) -> Tensor:
    """outputs: of the final norm."""
    (tokens,) = outputs
    return tokens_of(trunk, _norm_of_pooled(trunk)(tokens), kind)


def _class_tokens(trunk: Any, outputs: Sequence[Tensor], x: Tensor) -> Tensor:
    """outputs: of blocks, in front of the final norm."""
    after = _norm_of_pooled(trunk)
    return torch.cat([after(trunk.norm(tokens))[:, 0] for tokens in outputs], dim=-1)


def _norm_of_pooled(trunk: Any) -> nn.Module:
    """A network that pools has its norm after that, and none in front."""
    pools = isinstance(trunk.norm, nn.Identity)
    found: nn.Module = getattr(trunk, "fc_norm", trunk.norm) if pools else nn.Identity()
    return found


def tokens_of(trunk: Any, tokens: Tensor, kind: str) -> Tensor:
    """Some of the normalised tokens, N x T x D."""
    if kind == "CLS":
        return tokens[:, 0]
    if kind == "BLK":
        return tokens
    if kind == "REG":
        first = int(getattr(trunk, "cls_token", None) is not None)
        return tokens[:, first : trunk.num_prefix_tokens]
    patches = tokens[:, trunk.num_prefix_tokens :]
    if kind == "POOL":
        return patches.mean(1)
    at = trunk.extra.get(PATCHES_AT)
    return patches if at is None else patches.flatten(0, 1).index_select(0, at)


# ---- shown patches


def can_show(network: nn.Module) -> bool:
    """Tell whether timm's network drops patches at random at one place, `patch_drop`."""
    from timm.models.vision_transformer import VisionTransformer  # the import takes a second

    return isinstance(network, VisionTransformer) or _chooses_rotations(network)


def _chooses_rotations(network: nn.Module) -> bool:
    from timm.models.eva import Eva

    return isinstance(network, Eva)


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
        self.tells_places = _chooses_rotations(trunk)

    def forward(self, tokens: Tensor) -> Any:
        """Return the tokens that stay; for EVA also their places, by which it chooses rotations."""
        shown = self.trunk.extra.get(SHOWN)
        if shown is None and self.at_random is not None:
            return self.at_random(tokens)
        kept = tokens if shown is None else keep(tokens, shown, self.trunk.num_prefix_tokens)
        return (kept, shown) if self.tells_places else kept


def keep(tokens: Tensor, shown: Tensor, before: int) -> Tensor:
    """Return of N x T x D the first `before` tokens, and the shown ones of the others."""
    return torch.cat([tokens[:, :before], select(tokens[:, before:], shown)], dim=1)


def select(patches: Tensor, places: Tensor) -> Tensor:
    """Return of N x L x D those with the numbers N x K."""
    return patches.gather(1, places.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
