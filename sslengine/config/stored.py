"""The form in which a config is written to disk and shown: without environment and secrets.

A string from the environment is stored as its interpolation, `${oc.env:TRACKER_URL}`.
A string under a key with the name of a secret (`api_key`, `token`, at any depth) is masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from sslengine.config.sections import fields_of

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
    """Of an enum's member its name. Most values are plain already."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return OmegaConf.to_container(OmegaConf.create([value]), enum_to_str=True)[0]  # type: ignore[index]


def _is_ours(node: Any, key: Any) -> bool:
    """Whether it is a key of sslengine's schema: none of them is a secret."""
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
    """Inside the context, each use of the resolver `oc.env` adds an entry to the list."""
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
