"""The names that libraries give to the tensors of a network, and the trunk's.

Every table leads to the names of timm's vision transformers, or to those of torchvision's ResNets,
which most trunks have. What follows then depends on the trunk: some keep biases of queries and
values alone, some add no position to the class token. None of it changes what is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.vissl_names import from_vissl

Renamed = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Names:
    library: str
    # What to replace, and by what (see re.sub), in this order.
    table: tuple[tuple[str, Renamed], ...]


@dataclass(frozen=True)
class Named:
    """Tensors by the trunk's names."""

    library: str
    tensors: dict[str, Tensor]
    # Of the file, without what surrounds the network there.
    outside: tuple[str, ...] = ()

    def fit(self, trunk: Trunk) -> tuple[int, int]:
        """How many have a place; then, the fewer have none."""
        places = len(self.tensors.keys() & trunk.state_dict().keys())
        return places, places - len(self.tensors)


def _shifted(text: str, by: int) -> Renamed:
    """Replace by a text whose {} is the last group's number, counted from another start."""
    return lambda match: match.expand(
        text.replace("{}", str(int(match[match.lastindex or 1]) + by))
    )


NAMES = (
    Names("iBOT", ((r"^masked_embed$", "mask_token"),)),
    Names(
        "DINOv2 and DINOv3",
        (
            (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # blocks in chunks keep their numbers
            (r"^(register|storage)_tokens$", "reg_token"),
            (r"\.mlp\.w12\.", ".mlp.fc1."),
            (r"\.mlp\.w1\.", ".mlp.fc1_g."),
            (r"\.mlp\.w2\.", ".mlp.fc1_x."),
            (r"\.mlp\.w3\.", ".mlp.fc2."),
        ),
    ),
    Names(
        "transformers' ViTs",
        (
            (r"^embeddings\.(cls_token|mask_token)$", r"\1"),
            (r"^embeddings\.position_embeddings$", "pos_embed"),
            (r"^embeddings\.register_tokens$", "reg_token"),
            (r"^embeddings\.patch_embeddings\.(projection\.)?", "patch_embed.proj."),
            (r"^(?:encoder\.|model\.)?layers?\.(\d+)\.", r"blocks.\1."),
            (r"^layernorm\.", "norm."),
            (r"\.layernorm_before\.", ".norm1."),
            (r"\.layernorm_after\.", ".norm2."),
            (r"\.attention\.(?:attention\.)?([qkv])(?:uery|ey|alue|_proj)\.", r".attn.\1."),
            (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
            (r"\.intermediate\.dense\.", ".mlp.fc1."),
            (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
            (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
            (r"\.mlp\.weights_in\.", ".mlp.fc1."),
            (r"\.mlp\.gate_proj\.", ".mlp.fc1_g."),
            (r"\.mlp\.up_proj\.", ".mlp.fc1_x."),
            (r"\.mlp\.(weights_out|down_proj)\.", ".mlp.fc2."),
        ),
    ),
    Names(
        "transformers' ResNets",
        (
            (r"^embedder\.embedder\.convolution\.", "conv1."),
            (r"^embedder\.embedder\.normalization\.", "bn1."),
            (r"^encoder\.stages\.(\d)\.layers\.", _shifted("layer{}.", 1)),
            (r"\.layer\.(\d)\.convolution\.", _shifted(".conv{}.", 1)),
            (r"\.layer\.(\d)\.normalization\.", _shifted(".bn{}.", 1)),
            (r"\.shortcut\.convolution\.", ".downsample.0."),
            (r"\.shortcut\.normalization\.", ".downsample.1."),
        ),
    ),
    Names(
        "torchvision's ViTs",
        (
            (r"^conv_proj\.", "patch_embed.proj."),
            (r"^class_token$", "cls_token"),
            (r"^encoder\.pos_embedding$", "pos_embed"),
            (r"^encoder\.ln\.", "norm."),
            (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
            (r"\.ln_([12])\.", r".norm\1."),
            (r"\.self_attention\.in_proj_", ".attn.qkv."),
            (r"\.self_attention\.out_proj\.", ".attn.proj."),
            (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),
            (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
        ),
    ),
    Names(
        "mmpretrain's ViTs",
        (
            (r"^patch_embed\.projection\.", "patch_embed.proj."),
            (r"^layers\.(\d+)\.", r"blocks.\1."),
            (r"^ln1\.", "norm."),
            (r"\.ln([12])\.", r".norm\1."),
            (r"\.attn\.gamma1\.weight$", ".ls1.gamma"),
            (r"\.ffn\.gamma2\.weight$", ".ls2.gamma"),
            (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
            (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
        ),
    ),
    Names(
        "torchvision's ResNets in a row",  # nn.Sequential(*resnet.children())
        (
            (r"^0\.", "conv1."),
            (r"^1\.", "bn1."),
            (r"^([4-7])\.", _shifted("layer{}.", -3)),
        ),
    ),
)
# What networks are found in.
_AROUND = re.compile(
    r"(?:(?:backbone|encoder|model|_model|network|vit|timm_model|resnet|i?jepa|videomae"
    r"|dinov2|dinov2_with_registers|dinov3_vit)\.)+"
)
# Of files of networks: what is no part of a trunk, and what a trunk computes by itself.
_PARTS_OF_OTHERS = re.compile(
    r"(fc|heads?|head_dist|classifier|pooler|decoder\w*|lm_head|projection_head|prototypes"
    r"|local_cls_norm)\..+|(mask_token|decoder_pos_embed|rope_embed\.periods)"
    r"|.+\.(bias_mask|relative_position_index|attn_mask)"
)


def in_trunks_names(trunk: Trunk, given: Mapping[str, Tensor]) -> Named:
    """By the table that gives most of the trunk's tensors; a tensor without place keeps a name."""
    plain = given
    if isinstance(trunk, ByName):
        plain = {trunk.present_name(name): each for name, each in given.items()}
    best = Named("", from_vissl(trunk, plain))
    for each in _candidates(trunk, given):
        if each.fit(trunk) > best.fit(trunk):
            best = each
    return best


def _candidates(trunk: Trunk, given: Mapping[str, Tensor]) -> Iterator[Named]:
    for around in sorted({"", *(m[0] for m in map(_AROUND.match, given) if m)}, key=len):
        inside = {n.removeprefix(around): t for n, t in given.items() if n.startswith(around)}
        outside = tuple(name for name in given if not name.startswith(around))
        for names in (Names("", ()), *NAMES):
            renamed = {_replaced(name, names.table): each for name, each in inside.items()}
            if names.table and renamed.keys() == inside.keys():
                continue
            yield Named(names.library, _as_in(trunk, _joined(renamed)), outside)


def of_others(trunk: Trunk, names: Sequence[str]) -> set[str]:
    """Which of the names are no part of any trunk: heads, decoders, what only training needs."""
    own = trunk.state_dict().keys()
    classifiers = trunk.left_out if isinstance(trunk, ByName) else ()
    return {
        name
        for name in names
        if name not in own and (_PARTS_OF_OTHERS.fullmatch(name) or name.startswith(classifiers))
    }


def _replaced(name: str, table: Sequence[tuple[str, Renamed]]) -> str:
    for theirs, ours in table:
        name = re.sub(theirs, ours, name)
    return name


def _joined(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values are one layer; if no key has a bias, it is zero."""
    joined = dict(given)
    keys = {name.replace(".k.", ".q."): name for name in given if ".attn.k." in name}
    without_bias = not any(name.endswith(".bias") for name in keys)
    for name, query in given.items():
        if ".attn.q." in name and (name in keys or (without_bias and name.endswith(".bias"))):
            del joined[name]
            value = joined.pop(name.replace(".q.", ".v."), None)
            key = joined.pop(keys[name]) if name in keys else torch.zeros_like(query)
            joined[name.replace(".q.", ".qkv.")] = torch.cat(
                [query, key, *([] if value is None else [value])]
            )
        elif ".mlp.fc1_x." in name and name.replace("fc1_x", "fc1_g") not in given:
            joined[name.replace("fc1_x", "fc1")] = joined.pop(name)
    return joined


def _as_in(trunk: Trunk, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same network with the parts that the trunk has."""
    own, fitted = trunk.state_dict().keys(), dict(given)
    for name, tensor in given.items():
        gamma = re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name)
        if gamma in own:
            fitted[gamma] = fitted.pop(name, tensor)
        elif gamma != name and name not in own and bool((tensor == 1).all()):
            del fitted[name]  # LayerScale that scales nothing
        elif name.endswith(".attn.qkv.bias") and name not in own:
            _fit_biases(own, fitted, name)
        elif ".mlp.fc1_g." in name and name not in own:
            both = fitted.pop(name), fitted.pop(name.replace("fc1_g", "fc1_x"))
            fitted[name.replace("fc1_g", "fc1")] = torch.cat(both)
    return _with_free_class_token(trunk, fitted)


def _fit_biases(own: Collection[str], fitted: dict[str, Tensor], name: str) -> None:
    """Some networks have none for keys, others none: a bias that is left out must be zero."""
    mask = fitted.get(f"{name}_mask")  # of DINOv3
    bias = fitted[name] if mask is None else torch.where(mask == 0, mask, fitted[name])
    query, key, value = bias.chunk(3)
    at = name.removesuffix("qkv.bias")
    if f"{at}q_bias" in own and not key.any():
        fitted |= {f"{at}q_bias": query, f"{at}v_bias": value}
        del fitted[name]
    elif not bias.any():
        del fitted[name]


def _with_free_class_token(trunk: Trunk, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the class token's position to it, where the trunk has positions for patches alone."""
    token, places = given.get("cls_token"), given.get("pos_embed")
    if not getattr(trunk, "no_embed_class", False) or token is None or places is None:
        return given
    patches = places.shape[1] - 1 if places.ndim == 3 else 0
    if patches < 1 or math.isqrt(patches) ** 2 != patches:
        return given
    return {**given, "cls_token": token + places[:, :1], "pos_embed": places[:, 1:]}
