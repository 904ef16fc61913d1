"""What other programs call the networks in a checkpoint, and the tensors of a network.

A file's tensors are listed by flat names: the keys that lead to a state dict, each with a `/`
behind it, then the name there without the parts that wrappers add (`module.`). MoCo's first
filters are `state_dict/encoder_q.conv1.weight`. A row of FAMILIES says which prefixes the networks
have.

Every table of NAMES leads to the names of timm's vision transformers, or to those of torchvision's
ResNets, which most trunks have. What follows then depends on the trunk: some keep biases of queries
and values alone, some add no position to the class token. None of it changes what is computed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.errors import CheckpointError
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.weights import AUTO, MODEL, STUDENT, TEACHER

NEVER = "(?!)"
Renamed = str | Callable[[re.Match[str]], str]


class Family(NamedTuple):
    name: str
    # Regular expressions for the prefix of each network, of flat names.
    student: str
    teacher: str = NEVER
    # The network that WEIGHTS_INIT.NETWORK: auto takes, if the file has both.
    judged: str = STUDENT
    # A flat name (or the path of another value) that such a file has, besides a network.
    mark: str = ""
    # Names among the network's that are not of its trunk.
    others: str = NEVER


# The first row that fits is taken: a row that requires more is above one that requires less.
FAMILIES = (
    Family("DINOv2 or DINOv3", r"model/student\.backbone\.",
           r"(model/)?(teacher|model_ema)[/.]backbone\.", TEACHER, r"\w_head\."),
    Family("DINO or iBOT", r"student/backbone\.", r"teacher/backbone\.", TEACHER),
    Family("I-JEPA", "encoder/", "target_encoder/", TEACHER, "^(predictor|target_encoder)/"),
    Family("MoCo v1 or v2", r"(state_dict/)?encoder_q\.", r"(state_dict/)?encoder_k\.",
           mark=r"(^|/)encoder_q\."),
    Family("MoCo v3", r"(state_dict/)?base_encoder\.", r"(state_dict/)?momentum_encoder\.",
           mark=r"(^|/)base_encoder\."),
    Family("mmselfsup or mmpretrain", r"state_dict/backbone\.",
           r"state_dict/(encoder_k|target_net|momentum_encoder)\.0\.", mark="^meta/"),
    Family("lightly-train",
           r"state_dict/(student_)?embedding_model\.wrapped_model\._(model|features)\.",
           r"state_dict/teacher_embedding_model\.wrapped_model\._(model|features)\.", TEACHER),
    Family("lightly-train",  # DenseCL
           r"state_dict/query_encoder\.embedding_model\.wrapped_model\._(model|features)\.",
           r"state_dict/key_encoder\.embedding_model\.wrapped_model\._(model|features)\."),
    Family("stable-pretraining", r"state_dict/(backbone|encoder)\.student\.",
           r"state_dict/(backbone|encoder)\.teacher\.", TEACHER),
    Family("stable-pretraining", r"state_dict/student\.vit\.",  # SALT, whose teacher is frozen
           r"state_dict/teacher\.backbone\.vit\."),
    Family("stable-pretraining", r"state_dict/backbone\.", mark="^state_dict/callbacks_"),
    Family("solo-learn", r"state_dict/(backbone|encoder)\.",
           r"state_dict/momentum_(backbone|encoder)\.", mark=r"^state_dict/classifier\."),
    Family("lightly", r"(state_dict/)?student_backbone\.", r"(state_dict/)?(teacher_)?backbone\.",
           TEACHER, r"^(state_dict/)?student_backbone\."),
    Family("lightly", r"(state_dict/)?backbone\.",
           r"(state_dict/)?(backbone_momentum|teacher_backbone)\.",
           mark=r"^(state_dict/)?((projection|prediction)_head|backbone_momentum|teacher_)"),
    Family("PyTorch Lightning", r"state_dict/backbone\.", mark="^pytorch-lightning_version"),
    Family("SwAV", "(state_dict/)?", mark=r"^(state_dict/)?prototypes\b"),
    Family("MAE", "(model/)?", mark=r"^(model/)?decoder_(embed|blocks)\.", others="mask_token"),
    Family("a single network", "((state_dict|model|model_state_dict)/)?",
           "(state_dict|model)_ema/"),
)  # fmt: skip
_WRAPPERS = re.compile(
    r"(?<![^./])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


@dataclass(frozen=True)
class Recognised:
    """A network in a file of a family."""

    family: str
    # student, teacher, or model: the only one.
    network: str
    tensors: dict[str, Tensor]
    # Tensors outside of the network, counted by the first part of their names.
    beside: dict[str, int]


def recognise(content: Any, wanted: str, file: str) -> Recognised | None:
    """Find the network of a family; None: no tensors are where a family has them.

    wanted: WEIGHTS_INIT.NETWORK.
    """
    leaves: dict[str, Any] = {}
    for name, value in _flatten(content):
        if name in leaves:
            raise CheckpointError(
                f"{file} has {name!r} with and without what a wrapper puts before names (module.): "
                f"which one is meant? Save one of them."
            )
        leaves[name] = value
    tensors = {name: each for name, each in leaves.items() if isinstance(each, Tensor)}
    for family in FAMILIES:
        if any(re.search(family.mark, name) for name in leaves):
            patterns = {STUDENT: family.student, TEACHER: family.teacher}
            prefixes = {name: _prefix(tensors, each) for name, each in patterns.items()}
            held = {name: prefix for name, prefix in prefixes.items() if prefix is not None}
            if held:
                return _take(family, held, tensors, wanted, file)
    return None


def _flatten(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value, by the keys that lead to it."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{key}/")
        else:
            yield path + _WRAPPERS.sub("", str(key)), value


def _prefix(tensors: Mapping[str, Tensor], pattern: str) -> str | None:
    """Return the prefix in this file; of several, the one that most tensors have."""
    whole = re.compile(f"({pattern})[^/]+")
    counts = Counter(match[1] for match in map(whole.fullmatch, tensors) if match)
    return counts.most_common(1)[0][0] if counts else None


def _take(
    family: Family,
    held: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    wanted: str,
    file: str,
) -> Recognised:
    """held: the prefix of each network that is in the file."""
    judged = family.judged if family.judged in held else next(iter(held))
    chosen = judged if wanted == AUTO else wanted
    if chosen not in held:
        raise CheckpointError(
            f"config.MODEL.WEIGHTS_INIT.NETWORK: {file} is a checkpoint of {family.name} and holds "
            f"no {chosen}. Expected {AUTO} or {', '.join(held)}."
        )
    own = re.compile(f"{re.escape(held[chosen])}((?!({family.others})$)[^/]*)")
    ours = {match[1]: name for name in tensors if (match := own.fullmatch(name))}
    beside = Counter(map(_part, tensors.keys() - set(ours.values())))
    return Recognised(
        family.name,
        MODEL if list(held) == [STUDENT] else chosen,
        {name: tensors[full] for name, full in ours.items()},
        dict(sorted(beside.items())),
    )


def _part(name: str) -> str:
    """`state_dict/projector` of `state_dict/projector.0.weight`, `optimizer` of all in there."""
    keys, _, tensor = name.rpartition("/")
    return keys.partition("/")[0] if "/" in keys else f"{keys}/{tensor.split('.')[0]}".lstrip("/")


# ---- names of tensors


def _shifted(text: str, by: int) -> Renamed:
    """Replace by a text whose {} is the last group's number, counted from another start."""
    return lambda match: match.expand(
        text.replace("{}", str(int(match[match.lastindex or 1]) + by))
    )


# What to replace, and by what (see re.sub), in this order.
NAMES: Mapping[str, tuple[tuple[str, Renamed], ...]] = {
    "iBOT": ((r"^masked_embed$", "mask_token"),),
    "DINOv2 and DINOv3": (
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # blocks in chunks keep their numbers
        (r"^(register|storage)_tokens$", "reg_token"),
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w1\.", ".mlp.fc1_g."),
        (r"\.mlp\.w2\.", ".mlp.fc1_x."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
    ),
    "transformers' ViTs": (
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
    "transformers' ResNets": (
        (r"^embedder\.embedder\.convolution\.", "conv1."),
        (r"^embedder\.embedder\.normalization\.", "bn1."),
        (r"^encoder\.stages\.(\d)\.layers\.", _shifted("layer{}.", 1)),
        (r"\.layer\.(\d)\.convolution\.", _shifted(".conv{}.", 1)),
        (r"\.layer\.(\d)\.normalization\.", _shifted(".bn{}.", 1)),
        (r"\.shortcut\.convolution\.", ".downsample.0."),
        (r"\.shortcut\.normalization\.", ".downsample.1."),
    ),
    "torchvision's ViTs": (
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
    "mmpretrain's ViTs": (
        (r"^patch_embed\.projection\.", "patch_embed.proj."),
        (r"^layers\.(\d+)\.", r"blocks.\1."),
        (r"^ln1\.", "norm."),
        (r"\.ln([12])\.", r".norm\1."),
        (r"\.(?:attn|ffn)\.gamma([12])\.weight$", r".ls\1.gamma"),
        (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
        (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
    ),
    "torchvision's ResNets in a row": (  # nn.Sequential(*resnet.children())
        (r"^0\.", "conv1."),
        (r"^1\.", "bn1."),
        (r"^([4-7])\.", _shifted("layer{}.", -3)),
    ),
}
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


@dataclass(frozen=True)
class Named:
    """Tensors by the trunk's names."""

    library: str
    tensors: dict[str, Tensor]
    # Of the file, without what surrounds the network there.
    outside: tuple[str, ...] = ()

    def fit(self, trunk: Trunk) -> tuple[int, int]:
        """Count those that have a place; then, the fewer have none."""
        places = len(self.tensors.keys() & trunk.state_dict().keys())
        return places, places - len(self.tensors)


def rename(trunk: Trunk, given: Mapping[str, Tensor]) -> Named:
    """Use the table that gives most of the trunk's tensors; a tensor without place keeps a name."""
    plain = given
    if isinstance(trunk, ByName):
        plain = {trunk.present_name(name): each for name, each in given.items()}
    best = Named("", read_vissl(trunk, plain))
    for each in _list_candidates(trunk, given):
        if each.fit(trunk) > best.fit(trunk):
            best = each
    return best


def _list_candidates(trunk: Trunk, given: Mapping[str, Tensor]) -> Iterator[Named]:
    for around in sorted({"", *(m[0] for m in map(_AROUND.match, given) if m)}, key=len):
        inside = {n.removeprefix(around): t for n, t in given.items() if n.startswith(around)}
        outside = tuple(name for name in given if not name.startswith(around))
        for library, table in {"": (), **NAMES}.items():
            renamed = {_substitute(name, table): each for name, each in inside.items()}
            if not table or renamed.keys() != inside.keys():
                yield Named(library, _fit_parts(trunk, _join_attention(renamed)), outside)


def find_others(trunk: Trunk, names: Sequence[str]) -> set[str]:
    """Return names that are no part of any trunk: heads, decoders, what only training needs."""
    own = trunk.state_dict().keys()
    classifiers = trunk.left_out if isinstance(trunk, ByName) else ()
    return {
        name
        for name in names
        if name not in own and (_PARTS_OF_OTHERS.fullmatch(name) or name.startswith(classifiers))
    }


def _substitute(name: str, table: Sequence[tuple[str, Renamed]]) -> str:
    for theirs, ours in table:
        name = re.sub(theirs, ours, name)
    return name


def _join_attention(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make one layer of queries, keys and values; if no key has a bias, it is zero."""
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


def _fit_parts(trunk: Trunk, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write the same network with the parts that the trunk has."""
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
    return _free_class_token(trunk, fitted)


def _fit_biases(own: Collection[str], fitted: dict[str, Tensor], name: str) -> None:
    """Leave out a bias that is zero: some networks have none for keys, others none."""
    mask = fitted.get(f"{name}_mask")  # of DINOv3
    bias = fitted[name] if mask is None else torch.where(mask == 0, mask, fitted[name])
    query, key, value = bias.chunk(3)
    at = name.removesuffix("qkv.bias")
    if f"{at}q_bias" in own and not key.any():
        fitted |= {f"{at}q_bias": query, f"{at}v_bias": value}
        del fitted[name]
    elif not bias.any():
        del fitted[name]


def _free_class_token(trunk: Trunk, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the class token's position to it, where the trunk has positions for patches alone."""
    token, places = given.get("cls_token"), given.get("pos_embed")
    if not getattr(trunk, "no_embed_class", False) or token is None or places is None:
        return given
    patches = places.shape[1] - 1 if places.ndim == 3 else 0
    if patches < 1 or math.isqrt(patches) ** 2 != patches:
        return given
    return {**given, "cls_token": token + places[:, :1], "pos_embed": places[:, 1:]}


# ---- VISSL's names, which the trunk itself says


def write_vissl(trunk: Trunk) -> dict[str, Tensor]:
    """Return the trunk's tensors as a checkpoint of VISSL holds them under `model.trunk`."""
    state = trunk.state_dict()
    return {
        theirs: state[ours[0]] if len(ours) == 1 else torch.cat([state[name] for name in ours])
        for theirs, ours in _list_joined(trunk).items()
    }


def read_vissl(trunk: Trunk, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same tensors in this trunk's names; untouched if they have those already.

    A tensor that fits nowhere keeps its name, for the caller to complain about.
    """
    constant = re.compile(trunk.vissl_constants or NEVER)
    given = {_bare(name): tensor for name, tensor in given.items() if not constant.search(name)}
    own = trunk.state_dict()
    joined = {_bare(theirs): ours for theirs, ours in _list_joined(trunk).items()}
    # Some names mean one tensor here and another there, so it is all or none.
    if len(own.keys() & given.keys()) >= len(joined.keys() & given.keys()):
        return given
    named: dict[str, Tensor] = {}
    for theirs, tensor in given.items():
        ours = joined.get(theirs, [theirs])
        rows = [len(own[name]) for name in ours] if len(ours) > 1 else []
        if len(ours) == 1:
            named[ours[0]] = tensor
        elif tensor.ndim and len(tensor) == sum(rows):
            named.update(zip(ours, tensor.split(rows), strict=True))
        else:
            named[theirs] = tensor
    return named


def _bare(name: str) -> str:
    """Remove the name under which some trunks hold all: users write it or leave it out."""
    return name.removeprefix("_feature_blocks.")


def _list_joined(trunk: Trunk) -> dict[str, list[str]]:
    """Return VISSL's names, each with the names here whose tensors it joins."""
    joined: dict[str, list[str]] = {}
    for name in trunk.state_dict():
        joined.setdefault(trunk.vissl_name(name), []).append(name)
    return joined
