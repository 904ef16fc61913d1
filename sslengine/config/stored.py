"""The form in which a config is written to disk and shown, and what a resumed run changes of it.

A string from the environment is stored as its interpolation, `${oc.env:TRACKER_URL}`.
A string under a key with the name of a secret (`api_key`, `token`, at any depth) is masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from sslengine.absent import has_no_effect
from sslengine.config.components import owners_of
from sslengine.config.options import SHARDED_TASK
from sslengine.config.sections import fields_of
from sslengine.config.yaml_text import load_run
from sslengine.dotted import leaves
from sslengine.registry import DATA_SOURCES, SCHEDULERS

MASK = "***"
_SECRET = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|passphrase|credentials?|auth|"
    r"(api|access|private|secret|auth|license)_?key)$",
    re.IGNORECASE,
)

Path = tuple[Any, ...]


def is_secret(name: object) -> bool:
    return _SECRET.search(str(name)) is not None


def as_stored(config: DictConfig, texts: Mapping[Path, str]) -> dict[str, Any]:
    """Return the config as plain containers. texts: see `texts_of_environment`."""
    return {str(key): _stored(config, key, (key,), texts) for key in config}


def _stored(node: Any, key: Any, path: Path, texts: Mapping[Path, str]) -> Any:
    if path in texts:
        return texts[path]
    value = node[key]
    if isinstance(value, DictConfig):
        return {str(each): _stored(value, each, (*path, each), texts) for each in value}
    if isinstance(value, ListConfig):
        return [_stored(value, each, (*path, each), texts) for each in range(len(value))]
    if isinstance(value, str) and value and is_secret(key) and not _is_ours(node, key):
        return MASK
    return _plain(value)


def _plain(value: Any) -> Any:
    """Replace an enum's member by its name. Most values are plain already."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return OmegaConf.to_container(OmegaConf.create([value]), enum_to_str=True)[0]  # type: ignore[index]


def _is_ours(node: Any, key: Any) -> bool:
    """Tell whether it is a key of sslengine's schema: none of them is a secret."""
    if not isinstance(node, DictConfig) or key not in fields_of(node):
        return False
    return str(getattr(OmegaConf.get_type(node), "__module__", "")).startswith("sslengine.")


def texts_of_environment(root: DictConfig) -> dict[Path, str]:
    """Return the interpolations that read the environment, directly or through other values."""
    found = {}
    with _env_reads() as reads:
        for path, node, key in interpolations(root):
            reads.clear()
            try:
                value = node[key]
            except OmegaConfBaseException:
                continue  # merge.py reports it when it resolves all interpolations
            if reads and isinstance(value, str):
                found[path] = str(node._get_node(key)._value())
    return found


def interpolations(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the path of each, the node that it is in, and its key in that node."""
    content = node._content
    entries = [*content.items()] if isinstance(content, dict) else [*enumerate(content or ())]
    for key, child in entries:
        if isinstance(child, (DictConfig, ListConfig)) and not isinstance(child._content, str):
            yield from interpolations(child, (*path, key))
        elif child._is_interpolation():
            yield (*path, key), node, key


@contextmanager
def _env_reads() -> Iterator[list[str]]:
    """Add an entry to the list for each use of the resolver `oc.env` inside the context."""
    reads: list[str] = []
    resolvers = BaseContainer._resolvers
    original = resolvers["oc.env"]

    def recording(*arguments: Any, **named: Any) -> Any:
        reads.append("oc.env")
        return original(*arguments, **named)

    resolvers["oc.env"] = recording
    try:
        yield reads
    finally:
        resolvers["oc.env"] = original


# ---- a run resumes with another config: which keys have changed, and is that allowed?

# Keys that determine the model or the method may not: a checkpoint does not fit another one.
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
    """Tell whether the key determines the model or the method, so that it may not change."""
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
    new = dict(leaves(now))
    old = {
        path: value
        for path, value in leaves(earlier)
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
    """Tell whether the value follows from other keys, which are compared.

    A number in place of `auto` does not: HEAD.PARAMS, which has it, was given, and config.yaml
    holds the number of the other start.
    """
    return origin.startswith("derived:") and not origin.startswith("derived: auto:")


def _is_of_another(path: str) -> bool:
    """Tell whether it is a key of a schedule or data source: of one that is not chosen now."""
    section, _, key = path.rpartition(".")
    if section.startswith("DATA."):
        return bool(owners_of(DATA_SOURCES, key))
    return ".param_schedulers." in section and bool(owners_of(SCHEDULERS, key))


def _is_given(path: str, origins: Mapping[str, str]) -> bool:
    """Tell whether the key, or a section that contains it, was set; otherwise it is a default."""
    words = f"config.{path}".split(".")
    return any(".".join(words[:count]) in origins for count in range(2, len(words) + 1))


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}.") for top in tops)
