"""timm's ConViT, with timm's parameter names. Images may have any size that patches divide.

lastMAP     the patches as a map, N x D x H x W
lastCLS     the class token: the final feature

Gated attention depends on relative positions (horizontal, vertical, squared distance). VISSL gives
it the mean of LOCALITY_DIM copies of each, which slows down the learning of the position weights.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from timm.models.convit import GPSA, Block
from timm.models.convit import ConVit as TimmConvit
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.options import TrunkOptions
from sslengine.models.trunks.library import Feature
from sslengine.models.trunks.options import ConvitOptions, VisionTransformerOptions
from sslengine.models.trunks.patches import (
    PatchTrunk,
    block_design,
    drop_rates,
    mlp_ratio,
    resampled,
    set_attention_scale,
)
from sslengine.registry import register_trunk


class LocalBlock(Block):  # type: ignore[misc] # timm has no types
    """A block that gets the patches' positions as an argument of `forward`.

    timm stores them on the module, where images of another size would replace them before the
    block is recomputed in the backward pass.
    """

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        cast(Any, self.attn).rel_indices = places
        return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]


@register_trunk("convit", options=TrunkOptions)
class Convit(PatchTrunk, TimmConvit):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.VISION_TRANSFORMERS"
    block_names = r"blocks\.\d+"
    vissl_names = (
        (r"^cls_token$", "class_token"),
        (r"^pos_embed$", "pos_embedding"),
        (r"\.gating_param$", ".alpha"),
        (r"\.mlp\.fc(\d)\.", r".mlp.linear_\1."),
    )

    def __init__(self, options: TrunkOptions, in_chans: int = 3) -> None:
        convit: ConvitOptions = options.section_of(ConvitOptions)
        transformer = options.VISION_TRANSFORMERS
        super().__init__(in_chans=in_chans, **_timm_arguments(convit, transformer))
        self.patch_size, self.copies = transformer.PATCH_SIZE, convit.LOCALITY_DIM
        self.side = transformer.IMAGE_SIZE // transformer.PATCH_SIZE
        self.patch_embed.strict_img_size = False
        self._places: dict[tuple[Any, ...], Tensor] = {}
        for block in self.blocks[: self.local_up_to_layer]:
            block.__class__ = LocalBlock
        for index, attention in enumerate(self._local_attentions()):
            strength = convit.LOCALITY_STRENGTH if convit.LOCALITY_STRENGTH > 0 else 1 / (index + 1)
            self._prepare(attention, strength, convit.USE_LOCAL_INIT)
        if transformer.QK_SCALE:
            set_attention_scale((block.attn for block in self.blocks), transformer.QK_SCALE)
        self.set_features(
            {
                "lastMAP": Feature(
                    ("",), lambda trunk, given, x: trunk.make_map(given[0][:, 1:], x)
                ),
                "lastCLS": Feature(("",), lambda trunk, given, x: given[0][:, 0]),
            }
        )
        if transformer.CHECKPOINT_BLOCK:
            self.checkpoint_activations()

    def final_feature(self, x: Tensor) -> Tensor:
        """Return all tokens."""
        grid = self.grid(x)
        places, embedding = self._relative_places(*grid), cast(Tensor, self.pos_embed)
        if grid != (self.side, self.side):
            embedding = resampled(embedding, (self.side, self.side), grid)
        tokens: Tensor = self.pos_drop(self.patch_embed(x) + embedding)
        for block in self.blocks[: self.local_up_to_layer]:
            tokens = block(tokens, places)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), tokens], dim=1)
        for block in self.blocks[self.local_up_to_layer :]:
            tokens = block(tokens)
        return cast(Tensor, self.norm(tokens))

    def _local_attentions(self) -> list[GPSA]:
        return [each for each in self.modules() if isinstance(each, GPSA)]

    def _prepare(self, attention: GPSA, strength: float, local: bool) -> None:
        """Give the weights VISSL's shapes and the configured initial values."""
        attention.locality_strength = strength
        attention.apply(self._init_weights)
        if local:
            attention.local_init()
        weight, bias = attention.pos_proj.weight.detach(), attention.pos_proj.bias.detach()
        attention.pos_proj = nn.Linear(3 * self.copies, attention.num_heads)
        attention.pos_proj.weight.data = weight.repeat_interleave(self.copies, dim=1)
        attention.pos_proj.bias.data = bias
        if not local:
            nn.init.trunc_normal_(attention.pos_proj.weight, std=0.02)
        # Not a buffer, so that DDP does not broadcast it.
        del attention.rel_indices
        attention.gating_param = nn.Parameter(torch.ones(1, attention.num_heads, 1, 1))

    def _relative_places(self, height: int, width: int) -> Tensor:
        """Return the positions in the form of timm's gated attention; cached by size and device."""
        like = self.pos_embed
        key = (height, width, like.device, like.dtype)
        if key not in self._places:
            places = relative_places(height, width).repeat_interleave(self.copies, -1)
            self._places[key] = (places / self.copies)[None].to(like)
        return self._places[key]


def relative_places(height: int, width: int) -> Tensor:
    """Return the horizontal, vertical and squared distance from patch i to patch j."""
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([across.flatten(), down.flatten()], dim=-1).float()
    steps = places[None] - places[:, None]
    return torch.cat([steps, steps.square().sum(-1, keepdim=True)], dim=-1)


def _timm_arguments(convit: ConvitOptions, transformer: VisionTransformerOptions) -> dict[str, Any]:
    if convit.N_GPSA_LAYERS >= transformer.NUM_LAYERS:
        raise ConfigError(
            f"config.MODEL.TRUNK.CONVIT.N_GPSA_LAYERS: {convit.N_GPSA_LAYERS} of "
            f"{transformer.NUM_LAYERS} layers (VISION_TRANSFORMERS.NUM_LAYERS) leaves none for "
            f"the class token."
        )
    if not transformer.USE_CLASS_TOKEN:
        raise ConfigError(
            "config.MODEL.TRUNK.VISION_TRANSFORMERS.USE_CLASS_TOKEN: ConViT has a class token."
        )
    return {
        **block_design(transformer),
        **drop_rates(transformer, pos_drop_rate=transformer.DROPOUT_RATE),
        "num_classes": 0,
        # timm expects the width of a head.
        "embed_dim": transformer.HIDDEN_DIM // transformer.NUM_HEADS,
        "mlp_ratio": mlp_ratio(transformer),
        "norm_layer": nn.LayerNorm,
        "local_up_to_layer": convit.N_GPSA_LAYERS,
        "locality_strength": convit.LOCALITY_STRENGTH,
    }
