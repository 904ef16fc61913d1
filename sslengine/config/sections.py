"""The schema: a tree of dataclasses, each declared next to the code that it configures.

    @section("OPTIMIZER")
    @dataclass
    class OptimizerOptions:
        name: str = named(OPTIMIZERS, "sgd")

adds `config.OPTIMIZER` to the schema. A plugin adds a section in the same way, at
any depth. `read(config, OptimizerOptions)` returns the section as a plain typed
object: a copy, so the config cannot be changed by accident.

Every field has a reader. VISSL's keys that nothing reads are in no dataclass: absent.py.

The range of a value is declared with its default (ranges.py). A dataclass may have methods that
check or derive values:

    def check(self) -> Iterator[str]     rules between values, which are in their ranges; yields
                                         "KEY: what is wrong"
    def check_chosen(self)               rules that require a component to be imported
    def infer(self, facts: RunFacts)     (a loss's options) sets values that depend on the run,
                                         which has what the loss requires (registry.py)
"""

from __future__ import annotations

import dataclasses
import pickle
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, flag_override

from sslengine.config.components import Generated, is_of_signature, options_of
from sslengine.config.ranges import declare, default_of, fields, range_problems
from sslengine.errors import ConfigError
from sslengine.registry import Registry

C = TypeVar("C")

_SECTIONS: dict[str, type[Any]] = {}
_COMPONENTS: dict[type[Any], Registry[Any]] = {}
_HOSTS: dict[type[Any], Host] = {}


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


class Host(NamedTuple):
    """A section that has the keys of its components in addition to its own; see `hosts`."""

    own: type[Any]  # its dataclass, without keys of components
    components: Registry[Any]
    chosen_by: str  # the field that names them


def hosts(registry: Registry[Any], chosen_by: str) -> Callable[[type[C]], type[C]]:
    """Let options of components of `registry` be keys of this dataclass too: of those components
    that its field `chosen_by` names. merge.py adds them once it is known which are chosen.
    """

    def add(cls: type[C]) -> type[C]:
        _HOSTS[cls] = Host(cls, registry, chosen_by)
        return cls

    return add


def join(cls: type[C], names: Iterable[str] | None = None) -> type[C]:
    """Return a subclass that has the keys of these components too.

    names: None is all components for which nothing has to be imported.
    """
    if cls not in _HOSTS:
        return cls
    registry = _HOSTS[cls].components
    known = registry.open_names() if names is None else names
    options = tuple(dict.fromkeys(options_of(registry, name) for name in known))
    joined: type[C] = _join(cls, options)  # type: ignore[arg-type]
    return joined


@lru_cache(maxsize=256)
def _join(cls: type[Any], options: tuple[type[Any], ...]) -> type[Any]:
    own = {each.name: each for each in dataclasses.fields(cls)}
    nulls: dict[str, Any] = {}  # what a component requires is null until it is set
    for each in options:
        hints = typing.get_type_hints(each)
        for name, field in fields(each).items():
            if name in own and not is_of_signature(each):
                raise ConfigError(
                    f"{each.__qualname__}.{name}: {cls.__name__} has such a key; rename it."
                )
            if name not in own and default_of(field) is dataclasses.MISSING:
                nulls[name] = hints[name] | None
    bases = [each for each in options if not any(each in other.__mro__[1:] for other in options)]
    # The rules of components are checked where each is by itself.
    checks = {key: getattr(cls, key, lambda self: ()) for key in ("check", "check_chosen")}
    made = Generated(cls.__name__, (*bases, cls), {
        **checks, **dict.fromkeys(nulls), **own, "__doc__": cls.__doc__,
        "__annotations__": {**{name: each.type for name, each in own.items()}, **nulls},
        "__module__": cls.__module__, "made_by": (_join, (cls, options)),
    })  # fmt: skip
    return dataclasses.dataclass(made)


def named(registry: Registry[Any], default: Any, arguments: str = "", alone: Any = None) -> Any:
    """Declare a field whose value is a name of `registry`, or a list of names or of entries.

    arguments: the field that holds those of the component, if the name is given without them.
    alone: makes the entry for a name without arguments in a list, for readers that expect entries.
    """
    return declare(default, registry=registry, arguments=arguments, alone=alone)


def complete_entries(config: DictConfig) -> None:
    """Replace each name without arguments in a list of entries by an entry."""
    for _, node in typed_nodes(config):
        for key, declared in fields_of(node).items():
            if make_entry := declared.metadata.get("alone"):
                _complete(node[key], make_entry)


def _complete(entries: Any, make_entry: Callable[[str], Any]) -> None:
    match entries:
        case [str(), Mapping() as arguments, *_] if "name" not in arguments:
            return  # an entry with its arguments
        case [*_]:
            for index, each in enumerate(entries):
                if isinstance(each, str):
                    entries[index] = make_entry(each)
                else:
                    _complete(each, make_entry)


def epochs(default: Any) -> Any:
    """Declare a field that is a number of epochs, in which something changes; see check.py."""
    return declare(default, epochs=True)


def section_problems(section: Any) -> Iterator[str]:
    """Yield what is wrong with a section's values: their ranges first, then rules between them."""
    out_of_range = list(range_problems(section))
    yield from out_of_range
    if not out_of_range and hasattr(section, "check"):
        yield from section.check()


def schema() -> DictConfig:
    """Return the whole schema with its defaults."""
    built: DictConfig = pickle.loads(_pickled(tuple(_SECTIONS.items())))
    return built


@lru_cache(maxsize=1)  # to read it back takes a fortieth of the time of building it
def _pickled(sections: tuple[tuple[str, type[Any]], ...]) -> bytes:
    return pickle.dumps(_build(sections))


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
    put_in(parent, name, OmegaConf.structured(cls))
    OmegaConf.set_struct(parent, True)


def components_of(node: DictConfig) -> Registry[Any] | None:
    """Return the registry whose names are keys of this node, or None."""
    return _COMPONENTS.get(OmegaConf.get_type(node) or object)


def choosing_keys(node: DictConfig) -> list[str]:
    """Return the keys of a section that name its components."""
    registry = components_of(node)
    declared = fields_of(node).items() if registry is not None else ()
    return [key for key, each in declared if each.metadata.get("registry") is registry]


def find_host(node: Any) -> Host | None:
    """Return how components have keys in this section; None if they have none."""
    cls: Any = node._metadata.object_type if isinstance(node, DictConfig) else None
    made_by: Any = getattr(cls, "made_by", None)
    return _HOSTS.get(made_by[1][0] if made_by is not None and made_by[0] is _join else cls)


def give_keys(node: DictConfig, names: Iterable[str]) -> None:
    """Make the keys of these components those of the section, in place of others; keep values."""
    found = find_host(node)
    assert found is not None
    cls, content = join(found.own, names), cast(dict[Any, Any], node._content)
    added = {key: each for key, each in content.items() if key not in fields_of(node)}
    fresh: Any = pickle.loads(_pickled_node(cls))  # type: ignore[arg-type]
    for key in fields(cls):
        kept = content.get(key)
        if kept is not None and (key in fields(found.own) or not kept._is_none()):
            fresh._content[key] = kept
        else:
            fresh._content[key]._set_parent(node)
    node.__dict__["_content"] = {**fresh._content, **added}
    node._metadata.object_type = cls


@lru_cache(maxsize=256)  # OmegaConf takes twenty times as long
def _pickled_node(cls: type[Any]) -> bytes:
    return pickle.dumps(OmegaConf.structured(cls))


def fields_of(node: DictConfig) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the dataclass fields of a typed node; none for a dict without a dataclass."""
    # What OmegaConf.get_type and items_ex give, at a tenth of the time: this runs a thousand times.
    cls: Any = node._metadata.object_type if isinstance(node._content, dict) else None
    return fields(cls)


def element_type(node: DictConfig) -> type[Any] | None:
    """Return `Cls` if the node is a `dict[str, Cls]` of sections with names chosen by users."""
    cls = node._metadata.element_type
    return cls if dataclasses.is_dataclass(cls) and isinstance(cls, type) else None


def typed_nodes(node: DictConfig, path: str = "config") -> Iterator[tuple[str, DictConfig]]:
    """Yield the key path and node of every typed node in the tree."""
    typed = bool(fields_of(node))
    if typed:
        yield path, node
    content = node._content  # of an interpolation its text: it is not a section
    if isinstance(content, dict) and (typed or element_type(node) is not None):
        for key, value in content.items():
            if isinstance(value, DictConfig):
                yield from typed_nodes(value, f"{path}.{key!s}")


def convert_nodes(
    root: DictConfig, nodes: Sequence[tuple[str, DictConfig]]
) -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each of the tree's typed nodes; convert the tree once.

    OmegaConf raises an error if an interpolation refers to a key that is not there yet.
    """
    whole = OmegaConf.to_object(root)
    for path, _ in nodes:
        found: Any = whole
        for key in path.split(".")[1:]:
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        yield path, found


def put_in(parent: DictConfig, key: str, node: DictConfig) -> None:
    """Set a new node that nothing else refers to; OmegaConf would copy it."""
    with flag_override(parent, "no_deepcopy_set_nodes", True):
        parent[key] = node


def path_of(cls: type[Any]) -> str:
    return next(path for path, each in _SECTIONS.items() if each is cls)


def read(config: DictConfig, cls: type[C]) -> C:
    """Return a section of the config as an object of its dataclass."""
    if path := path_of(cls):
        return cast(C, OmegaConf.to_object(OmegaConf.select(config, path)))
    own: Any = OmegaConf.to_object(OmegaConf.masked_copy(config, [*fields(cls)]))
    return cls(**vars(own)) if isinstance(own, cls) else cls(**own)


def replaced(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a copy of the config with other values. values: by path, as MODEL.TRUNK.NAME."""
    copied: DictConfig = OmegaConf.create(config)  # type: ignore[assignment]
    with flag_override(copied, "readonly", False):
        for path, value in values.items():
            OmegaConf.update(copied, path, value, merge=False)
    return copied
