"""The schema: a tree of dataclasses, each declared next to the code that it configures.

    @section("OPTIMIZER")
    @dataclass
    class OptimizerOptions:
        name: str = named(OPTIMIZERS, "sgd")

adds `config.OPTIMIZER` to the schema. A plugin adds a section in the same way, at
any depth. `read(config, OptimizerOptions)` returns the section as a plain typed
object: a copy, so the config cannot be changed by accident.

Every field has a reader. VISSL's keys that nothing reads are in no dataclass: dead_keys.py.

A dataclass may have methods that check or derive values:

    def check(self) -> Iterator[str]     rules between values; yields "KEY: what is wrong"
    def check_chosen(self)               rules that require a component to be imported
    def infer(self, facts: RunFacts)     (a loss's options) sets values that depend on the run
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from sslengine.errors import ConfigError, nearest
from sslengine.registry import Registry

C = TypeVar("C")

_SECTIONS: dict[str, type[Any]] = {}
_COMPONENTS: dict[type[Any], Registry[Any]] = {}


def section(path: str, components: Registry[Any] | None = None) -> Callable[[type[C]], type[C]]:
    """Add a dataclass to the schema at `config.<path>`; "" is the config itself.

    With `components`, keys that are not fields of the dataclass are names of that registry; each
    is a section with the options of the component (`LOSS.simclr_info_nce_loss`).
    """

    def add(cls: type[C]) -> type[C]:
        taken_by = _SECTIONS.get(path)
        if taken_by is not None and taken_by.__qualname__ != cls.__qualname__:
            raise ConfigError(f"config.{path} is declared by {taken_by} and by {cls}.")
        _SECTIONS[path] = cls
        if components is not None:
            _COMPONENTS[cls] = components
        return cls

    return add


def named(registry: Registry[Any], default: Any) -> Any:
    """Declare a field whose value is a name of `registry`, or a list of names or of entries."""
    metadata = {"registry": registry}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def iterations(default: Any) -> Any:
    """Declare a field that is a number of train steps, or a list of `[name, steps]` entries.

    See reference_world_size.py. -1, 0 and null are not numbers of steps.
    """
    metadata = {"iterations": True}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def one_of(options: Any, key: str, *allowed: object) -> Iterator[str]:
    """Yield a problem if `options.key` is none of the allowed values."""
    value = getattr(options, key)
    if value not in allowed:
        words = [each for each in allowed if isinstance(each, str)]
        expected = ", ".join(str(each) for each in allowed)
        yield f"{key}: expected one of {expected}; got {value!r}. {nearest(value, words)}".rstrip()


def schema() -> DictConfig:
    """Return the whole schema with its defaults."""
    return copy.deepcopy(_build(tuple(_SECTIONS.items())))


@lru_cache(maxsize=1)  # copying takes an eighth of the time; plugins may add sections
def _build(sections: tuple[tuple[str, type[Any]], ...]) -> DictConfig:
    root = cast(DictConfig, OmegaConf.structured(dict(sections)[""]))
    for path, cls in sorted(sections, key=lambda item: item[0].count(".")):
        if path:
            *parents, name = path.split(".")
            parent = root
            for each in parents:
                parent = parent[each]
            extend(parent, name, cls)
    return root


def extend(parent: DictConfig, name: str, cls: type[Any]) -> None:
    """Add a typed node to a node whose dataclass has no such field."""
    OmegaConf.set_struct(parent, False)
    parent[name] = OmegaConf.structured(cls)
    OmegaConf.set_struct(parent, True)


def components_of(node: DictConfig) -> Registry[Any] | None:
    """Return the registry whose names are keys of this node, or None."""
    return _COMPONENTS.get(OmegaConf.get_type(node) or object)


def fields_of(node: DictConfig) -> dict[str, dataclasses.Field[Any]]:
    """Return the dataclass fields of a typed node; none for a dict without a dataclass."""
    cls = OmegaConf.get_type(node)
    if cls is None or not dataclasses.is_dataclass(cls):
        return {}
    return {field.name: field for field in dataclasses.fields(cls)}


def element_type(node: DictConfig) -> type[Any] | None:
    """Return `Cls` if the node is a `dict[str, Cls]` of sections with names chosen by users."""
    cls = node._metadata.element_type
    return cls if dataclasses.is_dataclass(cls) and isinstance(cls, type) else None


def typed_nodes(node: DictConfig, path: str = "config") -> Iterator[tuple[str, DictConfig]]:
    """Yield the key path and node of every typed node in the tree."""
    typed = bool(fields_of(node))
    if typed:
        yield path, node
    if typed or element_type(node) is not None:
        # Interpolations are not resolved: they are not sections.
        for key, value in node.items_ex(resolve=False):
            if isinstance(value, DictConfig) and not value._is_interpolation():
                yield from typed_nodes(value, f"{path}.{key!s}")


def read(config: DictConfig, cls: type[C]) -> C:
    """Return a section of the config as an object of its dataclass."""
    path = next(path for path, each in _SECTIONS.items() if each is cls)
    node = OmegaConf.select(config, path) if path else config
    return cast(C, OmegaConf.to_object(node))
