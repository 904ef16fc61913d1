"""Checkpoints of other programs: which of them a file is, and where the network is in it.

A file's tensors are listed by flat names: the keys that lead to a state dict, each with a `/`
behind it, then the name there without the parts that wrappers add (`module.`). MoCo's first
filters are `state_dict/encoder_q.conv1.weight`. A row of the table says which prefixes the
networks have. How a network's own tensors are named is in tensor_names.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sslengine.errors import CheckpointError
from sslengine.models.networks import AUTO, MODEL, STUDENT, TEACHER


@dataclass(frozen=True)
class Family:
    name: str
    # Regular expressions for the prefix of each network, of flat names.
    student: str
    teacher: str = ""
    # The network that WEIGHTS_INIT.NETWORK: auto takes, if the file has both.
    judged: str = STUDENT
    # A flat name (or the path of another value) that such a file has, besides a network.
    mark: str = ""
    # Names among the network's that are not of its trunk.
    of_others: str = "(?!)"


# The first row that fits is taken: a row that requires more is above one that requires less.
FAMILIES = (
    Family(
        "DINOv2 or DINOv3",
        r"model/student\.backbone\.",
        r"(model/)?(teacher|model_ema)[/.]backbone\.",
        TEACHER,
        mark=r"\w_head\.",
    ),
    Family("DINO or iBOT", r"student/backbone\.", r"teacher/backbone\.", TEACHER),
    Family("I-JEPA", "encoder/", "target_encoder/", TEACHER, mark="^(predictor|target_encoder)/"),
    Family(
        "MoCo v1 or v2",
        r"(state_dict/)?encoder_q\.",
        r"(state_dict/)?encoder_k\.",
        mark=r"(^|/)encoder_q\.",
    ),
    Family(
        "MoCo v3",
        r"(state_dict/)?base_encoder\.",
        r"(state_dict/)?momentum_encoder\.",
        mark=r"(^|/)base_encoder\.",
    ),
    Family(
        "mmselfsup or mmpretrain",
        r"state_dict/backbone\.",
        r"state_dict/(encoder_k|target_net|momentum_encoder)\.0\.",
        mark="^meta/",
    ),
    Family(
        "lightly-train",
        r"state_dict/(student_)?embedding_model\.wrapped_model\._(model|features)\.",
        r"state_dict/teacher_embedding_model\.wrapped_model\._(model|features)\.",
        TEACHER,
    ),
    Family(
        "lightly-train",  # DenseCL
        r"state_dict/query_encoder\.embedding_model\.wrapped_model\._(model|features)\.",
        r"state_dict/key_encoder\.embedding_model\.wrapped_model\._(model|features)\.",
    ),
    Family(
        "stable-pretraining",
        r"state_dict/(backbone|encoder)\.student\.",
        r"state_dict/(backbone|encoder)\.teacher\.",
        TEACHER,
    ),
    Family(
        "stable-pretraining",  # SALT, whose teacher is frozen
        r"state_dict/student\.vit\.",
        r"state_dict/teacher\.backbone\.vit\.",
    ),
    Family("stable-pretraining", r"state_dict/backbone\.", mark="^state_dict/callbacks_"),
    Family(
        "solo-learn",
        r"state_dict/(backbone|encoder)\.",
        r"state_dict/momentum_(backbone|encoder)\.",
        mark=r"^state_dict/classifier\.",
    ),
    Family(
        "lightly",
        r"(state_dict/)?student_backbone\.",
        r"(state_dict/)?(teacher_)?backbone\.",
        TEACHER,
        mark=r"^(state_dict/)?student_backbone\.",
    ),
    Family(
        "lightly",
        r"(state_dict/)?backbone\.",
        r"(state_dict/)?(backbone_momentum|teacher_backbone)\.",
        mark=r"^(state_dict/)?((projection|prediction)_head|backbone_momentum|teacher_)",
    ),
    Family("PyTorch Lightning", r"state_dict/backbone\.", mark="^pytorch-lightning_version"),
    Family("SwAV", "(state_dict/)?", mark=r"^(state_dict/)?prototypes\b"),
    Family("MAE", "(model/)?", mark=r"^(model/)?decoder_(embed|blocks)\.", of_others="mask_token"),
    Family(
        "a single network", "((state_dict|model|model_state_dict)/)?", "(state_dict|model)_ema/"
    ),
)
_WRAPPERS = re.compile(
    r"(?<![^./])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


@dataclass(frozen=True)
class Found:
    """A network in a file of a family."""

    family: str
    # student, teacher, or model: the only one.
    network: str
    tensors: dict[str, Tensor]
    # Tensors outside of the network, counted by the first part of their names.
    beside: dict[str, int]


def recognise(content: Any, wanted: str, file: str) -> Found | None:
    """wanted: WEIGHTS_INIT.NETWORK. None: no tensors are where a family has them."""
    flat = list(_flat(content))
    leaves = dict(flat)
    if len(leaves) < len(flat):
        twice = next(name for name, times in Counter(name for name, _ in flat).items() if times > 1)
        raise CheckpointError(
            f"{file} has {twice!r} with and without what a wrapper puts before names (module.): "
            f"which one is meant? Save one of them."
        )
    tensors = {name: each for name, each in leaves.items() if isinstance(each, Tensor)}
    for family in FAMILIES:
        if not any(re.search(family.mark, name) for name in leaves):
            continue
        prefixes = {STUDENT: family.student, TEACHER: family.teacher or "(?!)"}
        inside = {name: _inside(tensors, prefix) for name, prefix in prefixes.items()}
        held = {name: prefix for name, prefix in inside.items() if prefix is not None}
        if held:
            return _found(family, held, tensors, wanted, file)
    return None


def _flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value, by the keys that lead to it."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}/")
        else:
            yield path + _WRAPPERS.sub("", str(key)), value


def _inside(tensors: Mapping[str, Tensor], prefix: str) -> str | None:
    """The prefix in this file; of several, the one that most tensors have."""
    pattern = re.compile(f"({prefix})[^/]+")
    counts = Counter(match[1] for match in map(pattern.fullmatch, tensors) if match)
    return counts.most_common(1)[0][0] if counts else None


def _found(
    family: Family,
    held: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    wanted: str,
    file: str,
) -> Found:
    judged = family.judged if family.judged in held else next(iter(held))
    chosen = judged if wanted == AUTO else wanted
    if chosen not in held:
        raise CheckpointError(
            f"config.MODEL.WEIGHTS_INIT.NETWORK: {file} is a checkpoint of {family.name} and holds "
            f"no {chosen}. Expected {AUTO} or {', '.join(held)}."
        )
    prefix = held[chosen]
    ours = {
        name.removeprefix(prefix): name
        for name in tensors
        if name.startswith(prefix)
        and "/" not in name.removeprefix(prefix)
        and not re.fullmatch(family.of_others, name.removeprefix(prefix))
    }
    beside = Counter(map(_part, tensors.keys() - set(ours.values())))
    return Found(
        family.name,
        MODEL if list(held) == [STUDENT] else chosen,
        {name: tensors[full] for name, full in ours.items()},
        dict(sorted(beside.items())),
    )


def _part(name: str) -> str:
    """`state_dict/projector` of `state_dict/projector.0.weight`, `optimizer` of all in there."""
    keys, _, tensor = name.rpartition("/")
    return keys.partition("/")[0] if "/" in keys else f"{keys}/{tensor.split('.')[0]}".lstrip("/")
