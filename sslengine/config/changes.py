"""A run resumes with another config: which keys have changed, and is that allowed?

Most changes are: a longer run, other logging, other workers, another learning rate. Keys that
determine the model or the method may not change, because a checkpoint does not fit another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sslengine.absent import has_no_effect
from sslengine.config.components import owners_of
from sslengine.config.options import SHARDED_TASK
from sslengine.config.yaml_text import load_run
from sslengine.registry import DATA_SOURCES, SCHEDULERS

_FIXED = ("MODEL", "LOSS", "TRAINER.TASK_NAME", "TRAINER.TRAIN_STEP_NAME", "OPTIMIZER.name")
# Keys below _FIXED that may change: they determine how the model is computed.
_FREE = (
    "MODEL.ACTIVATION_CHECKPOINTING", "MODEL.AMP_PARAMS", "MODEL.CHANNELS_LAST", "MODEL.COMPILE",
    "MODEL.FSDP_CONFIG", "MODEL.GRAD_CLIP", "MODEL.WEIGHTS_INIT",
)  # fmt: skip
_SAME_TASK = {"self_supervision_task", SHARDED_TASK}


class Change(NamedTuple):
    path: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"config.{self.path}: {self.before} -> {self.now}"

    @property
    def allowed(self) -> bool:
        if self.path == "TRAINER.TASK_NAME" and {self.before, self.now} <= _SAME_TASK:
            return True
        return not is_fixed(self.path)


# A key of several methods that may change: how the memory is stored.
_FREE_IN_LOSS = ".memory_params.sharded"


def is_fixed(path: str) -> bool:
    """Whether the key determines the model or the method, so that it may not change."""
    free = _below(path, _FREE) or path.endswith(_FREE_IN_LOSS)
    return _below(path, _FIXED) and not free


def changes(
    before: str, now: Mapping[str, Any], origins: Mapping[str, str], where: str = "config.yaml"
) -> list[Change]:
    """Return the changes between `config.yaml` of an earlier start and the present config.

    now: the present config in the form in which it is stored (stored.py).
    where: what an error calls the earlier one.

    Omitted are: values that follow from others; CHECKPOINT; keys without effect that an earlier
    version accepted; and keys that the earlier version did not have, if they have their defaults.
    """
    earlier = load_run(before, where)["config"]
    new = dict(_leaves(now))
    old = {
        path: value
        for path, value in _leaves(earlier)
        if path in new or not (has_no_effect(f"config.{path}") or _is_of_another(path))
    }
    found = []
    for path in dict.fromkeys((*new, *old)):
        derived = _follows(origins.get(f"config.{path}", ""))
        later = path not in old and not _is_given(path, origins)
        if derived or later or _below(path, ("CHECKPOINT",)):
            continue
        if old.get(path) != new.get(path):
            found.append(Change(path, old.get(path, "not set"), new.get(path, "not set")))
    return found


def _follows(origin: str) -> bool:
    """Does the value follow from other keys, which are compared? A number in place of `auto` does
    not: HEAD.PARAMS, which has it, was given, and config.yaml holds the number of the other start.
    """
    return origin.startswith("derived:") and not origin.startswith("derived: auto:")


def _is_of_another(path: str) -> bool:
    """Is it a key of some schedule or data source? One that the config lacks is not chosen."""
    section, _, key = path.rpartition(".")
    if section.startswith("DATA."):
        return bool(owners_of(DATA_SOURCES, key))
    return ".param_schedulers." in section and bool(owners_of(SCHEDULERS, key))


def _is_given(path: str, origins: Mapping[str, str]) -> bool:
    """Whether the key, or a section that contains it, was set; otherwise it is a default."""
    words = f"config.{path}".split(".")
    return any(".".join(words[:count]) in origins for count in range(2, len(words) + 1))


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}.") for top in tops)
