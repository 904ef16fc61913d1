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
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from sslengine.config.components import Made, is_of_signature, options_of
from sslengine.config.objects import declare, fields, object_of_own_keys, to_object
from sslengine.config.ranges import range_problems
from sslengine.errors import ConfigError
from sslengine.registry import Registry

C = TypeVar("C")

_SECTIONS: dict[str, type[Any]] = {}
_COMPONENTS: dict[type[Any], Registry[Any]] = {}
_BESIDE: dict[type[Any], tuple[Registry[Any], str]] = {}


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


def beside(registry: Registry[Any], chosen_by: str) -> Callable[[type[C]], type[C]]:
    """Options of components of `registry` are keys of this dataclass too: of those components that
    its field `chosen_by` names. Until it is known which are chosen (config/beside.py) a config
    holds the keys of all, each null where nothing sets it.
    """

    def add(cls: type[C]) -> type[C]:
        _BESIDE[cls] = registry, chosen_by
        return cls

    return add


@lru_cache(maxsize=256)
def joined(cls: type[Any], options: tuple[type[Any], ...], of_all: bool = False) -> type[Any]:
    """A subclass of `cls` and of these dataclasses. of_all: every default is null."""
    own = {each.name: each for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
    found: dict[str, list[Any]] = {}
    for each in options:
        hints = typing.get_type_hints(each)
        for field in dataclasses.fields(each):
            required = field.default is field.default_factory is dataclasses.MISSING
            if field.name in own and not is_of_signature(each):
                raise ConfigError(
                    f"{each.__qualname__}.{field.name}: {cls.__name__} has such a key; rename it."
                )
            if required or of_all:
                found.setdefault(field.name, []).append(hints[field.name])
    nulls = {name: _common(types) | None for name, types in found.items() if name not in own}
    bases = [each for each in options if not any(each in other.__mro__[1:] for other in options)]
    checks = {key: getattr(cls, key, _check_nothing) for key in ("check", "check_chosen")}
    made = Made(cls.__name__, (*bases, cls), {
        **checks, **dict.fromkeys(nulls), **own, "__doc__": cls.__doc__,
        "__annotations__": {**{name: each.type for name, each in own.items()}, **nulls},
        "__module__": cls.__module__, "made_by": (joined, (cls, options, of_all)),
    })  # fmt: skip
    return dataclasses.dataclass(made)  # type: ignore[arg-type, return-value]


def _check_nothing(section: Any) -> tuple[str, ...]:
    return ()  # the rules of components are checked where each is by itself


def _common(types: list[Any]) -> Any:
    """The type that several components give a key of this name."""
    return types[0] if len({str(each).removesuffix(" | None") for each in types}) == 1 else Any


def with_all(cls: type[C], nulls: bool = True) -> type[C]:
    """With the keys of all components, if components have keys in this section."""
    if cls not in _BESIDE:
        return cls
    registry, _ = _BESIDE[cls]
    options = tuple(dict.fromkeys(_known_options(registry)))
    return joined(cls, options, nulls)  # type: ignore[arg-type]


def with_chosen(cls: type[C], names: Iterable[str]) -> type[C]:
    """With the keys of these components alone."""
    registry, _ = _BESIDE[cls]
    options = tuple(dict.fromkeys(options_of(registry, name) for name in names))
    return joined(cls, options)  # type: ignore[arg-type]


def _known_options(registry: Registry[Any]) -> Iterator[type[Any]]:
    """Of all components for which nothing has to be imported."""
    for name in registry.names():
        if registry.is_open(name):
            yield options_of(registry, name)


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


def iterations(default: Any) -> Any:
    """Declare a field that is a number of train steps, or a list of `[name, steps]` entries.

    See lr_scaling.py. -1, 0 and null are not numbers of steps.
    """
    return declare(default, iterations=True)


def epochs(default: Any) -> Any:
    """Declare a field that is a number of epochs, in which something changes; see no_effect.py."""
    return declare(default, epochs=True)


def section_problems(section: Any) -> Iterator[str]:
    """Yield what is wrong with a section's values: their ranges first, then rules between them."""
    out_of_range = list(range_problems(section))
    yield from out_of_range
    if not out_of_range and hasattr(section, "check"):
        yield from section.check()


def schema() -> DictConfig:
    """Return the whole schema with its defaults."""
    built: DictConfig = pickle.loads(_pickled(tuple(_SECTIONS.items()), _with_keys()))
    return built


def _with_keys() -> tuple[type[Any], ...]:
    """The sections with keys of components, to which plugins may add."""
    return tuple(map(with_all, _BESIDE))


@lru_cache(maxsize=1)  # to read it back takes a fortieth of the time of building it
def _pickled(sections: tuple[tuple[str, type[Any]], ...], _: tuple[type[Any], ...]) -> bytes:
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
    """The keys of a section that name its components."""
    registry = components_of(node)
    declared = fields_of(node).items() if registry is not None else ()
    return [key for key, each in declared if each.metadata.get("registry") is registry]


def keys_beside(node: DictConfig) -> tuple[type[Any], Registry[Any], str] | None:
    """Of a node whose components have keys in it: its dataclass without them, what the
    components are, and the field that names them."""
    made_by: Any = getattr(OmegaConf.get_type(node), "made_by", (None,))
    if made_by[0] is not joined:
        return None
    cls = made_by[1][0]
    return (cls, *_BESIDE[cls])


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


def as_objects(
    root: DictConfig, nodes: Sequence[tuple[str, DictConfig]]
) -> Iterator[tuple[str, Any]]:
    """Yield the key path and the object of each of the tree's typed nodes.

    The tree is converted once; where that fails, for an interpolation refers to a key that is not
    there yet, each node by itself, and those that fail are left out.
    """
    try:
        whole = to_object(root)
    except OmegaConfBaseException:
        for path, node in nodes:
            with suppress(OmegaConfBaseException):
                yield path, to_object(node)
        return
    for path, _ in nodes:
        found: Any = whole
        for key in path.split(".")[1:]:
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        yield path, found


def new_node(cls: type[Any]) -> DictConfig:
    """A typed node with the defaults of this dataclass."""
    node: DictConfig = pickle.loads(_pickled_node(cls, _with_keys()))  # type: ignore[arg-type]
    return node


@lru_cache(maxsize=256)  # OmegaConf takes twenty times as long
def _pickled_node(cls: type[Any], _: tuple[type[Any], ...]) -> bytes:
    return pickle.dumps(OmegaConf.structured(cls))


def put_in(parent: DictConfig, key: str, node: DictConfig) -> None:
    """Set a new node that nothing else refers to; OmegaConf would copy it."""
    with flag_override(parent, "no_deepcopy_set_nodes", True):
        parent[key] = node


def move(node: DictConfig, key: str, other: DictConfig) -> None:
    """Move a key's node from a section that is dropped into another that has the same key."""
    taken: Any = node._get_node(key)
    taken._set_parent(other)
    other._content[key] = taken  # type: ignore[index,call-overload]


def read(config: DictConfig, cls: type[C]) -> C:
    """Return a section of the config as an object of its dataclass."""
    path = next(path for path, each in _SECTIONS.items() if each is cls)
    if path:
        return cast(C, to_object(OmegaConf.select(config, path)))
    return cast(C, object_of_own_keys(config, cls))


def replaced(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """A copy of the config with other values. values: by path, as MODEL.TRUNK.NAME."""
    copied: DictConfig = OmegaConf.create(config)  # type: ignore[assignment]
    with flag_override(copied, "readonly", False):
        for path, value in values.items():
            OmegaConf.update(copied, path, value, merge=False)
    return copied


def sections_of(given: Sequence[str], kinds: Sequence[type[Any]]) -> list[Any]:
    """Sections without the rest of a config: their defaults, and what SECTION.KEY=VALUE sets."""
    paths = [next(path for path, each in _SECTIONS.items() if each is kind) for kind in kinds]
    plain = {path: OmegaConf.structured(kind) for path, kind in zip(paths, kinds)}
    try:
        typed = OmegaConf.from_dotlist([each.removeprefix("config.") for each in given])
        with flag_override(OmegaConf.create(plain), "struct", True) as tree:
            merged = OmegaConf.merge(tree, typed)
    except OmegaConfBaseException as error:
        raise ConfigError(f"--set: expected a key of {', '.join(paths)}: {error}") from error
    found: list[Any] = [to_object(OmegaConf.select(merged, path)) for path in paths]
    problems = [
        f"config.{path}.{each}" for path, one in zip(paths, found) for each in section_problems(one)
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return found
