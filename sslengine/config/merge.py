"""Merge layers onto the schema: check keys and types, and store the origin of every value.

Mistakes are collected and reported together, each with its key path, its origin (a file or an
argument), what was expected and the nearest right name. Mistakes in sslengine's own keys are
reported first, which needs no imports; then mistakes in the options of components, whose modules
must be imported, and torch with them.

The keys of a section are known once it is known which components it names: until then the values
of others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, UnsupportedValueType

from sslengine import absent
from sslengine.config import vissl
from sslengine.config.components import (
    belongs_to,
    keys_of,
    named_entries,
    options_of,
    owners_of,
)
from sslengine.config.compose import COMMAND_LINE, Assignment, Composition
from sslengine.config.merged import Merged, Root
from sslengine.config.ranges import default_of, fields
from sslengine.config.sections import (
    Host,
    choosing_keys,
    complete_entries,
    components_of,
    element_type,
    extend,
    fields_of,
    find_host,
    give_keys,
    put_in,
    schema,
    typed_nodes,
)
from sslengine.config.stored import interpolations, is_fixed, is_secret, texts_of_environment
from sslengine.errors import ConfigError, UntrustedError, listing, nearest
from sslengine.registry import LOSSES, SCHEDULERS, Registry, component_key


def merge(
    composition: Composition, check_own_keys: Callable[[Merged], None] = Merged.raise_problems
) -> Merged:
    """Return the typed config with all layers and arguments applied in order.

    check_own_keys: raises problems of the config before the options of components are added.
    """
    root = OmegaConf.structured(Root)
    put_in(root, "config", schema())
    merged = Merged(composition, root)
    writer = _Writer(merged)
    for layer in composition.layers:
        writer.put_all(root, layer.tree, "", layer.origin)
    for assignment in composition.assignments:
        writer.assign(assignment)
    writer.join_sections()
    check_own_keys(merged)
    for path, node in typed_nodes(root.config):
        _add_chosen(composition, path, node)
    writer.put_waiting(components_known=True)
    writer.join_sections()
    merged.raise_problems()
    # Keys that may not change when the run resumes are stored by value, to be compared.
    merged.texts = {
        path: text
        for path, text in texts_of_environment(root.config).items()
        if is_secret(path[-1]) or not is_fixed(".".join(map(str, path)))
    }
    try:
        if any(interpolations(root)):
            OmegaConf.resolve(root)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot resolve an interpolation: {error}") from error
    complete_entries(root.config)
    return merged


class _WaitsError(Exception):
    """The key belongs to a component, whose options are not in the config yet."""


class _Writer:
    def __init__(self, merged: Merged) -> None:
        self.merged, self.composition = merged, merged.composition
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._components_known = False
        self._joined: dict[int, DictConfig] = {}  # sections with keys of their components, by id
        self._new: list[str] = []  # key paths that `+` may add

    def now_or_later(self, put: Callable[..., None], *arguments: Any) -> None:
        try:
            put(*arguments)
        except _WaitsError:
            self._waiting.append((put, arguments))

    def put_waiting(self, components_known: bool) -> None:
        waiting, self._waiting, self._components_known = self._waiting, [], components_known
        for put, arguments in waiting:
            if self._is_there(*arguments):
                self.now_or_later(put, *arguments)

    def _is_there(self, node: Any, *more: Any) -> bool:
        """Tell whether a section has been neither replaced nor set to null since."""
        return OmegaConf.select(self.merged.root, more[2].rpartition(".")[0]) is node

    def join_sections(self) -> None:
        """Give each section that holds keys of components those of the components it names."""
        for path, node in typed_nodes(self.merged.config):
            found = find_host(node)
            if found is not None and id(node) not in self._joined:
                # A wrong name is reported by check.py; an interpolation may need a component.
                with suppress(ConfigError, OmegaConfBaseException):
                    give_keys(node, _list_hosted(self.merged.config, path, node))
                    vissl.put_default_rates(self.merged, path, node)
                    self._joined[id(node)] = node
        self.put_waiting(self._components_known)

    def put_all(self, node: DictConfig, tree: Mapping[Any, Any], path: str, origin: str) -> None:
        for key, value in tree.items():
            below = f"{path}.{key}" if path else str(key)
            self.now_or_later(self.put, node, str(key), value, below, origin, tree)

    def put(
        self, node: DictConfig, key: str, value: Any, path: str, origin: str,
        layer: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        key, path = vissl.present_key(key, path)
        if vissl.is_dead(node, key, path):
            vissl.report_dead(self.merged, path, value, origin)
            return
        if beside := self._component_beside(node, key, value, path, layer):
            node, path = node[beside], f"{path.rpartition('.')[0]}.{beside}.{key}"
        if not self._known(node, key, path, origin, value):
            return
        if isinstance(value, Mapping):
            _open(node, key)
        if value is None and _is_of_component(node, key):
            value = default_of(fields_of(node)[key])
        current = node._get_node(key) if key in node else None
        is_section = isinstance(current, DictConfig) and not current._is_none()
        if isinstance(current, ListConfig) and isinstance(value, _Walk):
            self._put_in_list(current, value, path)
        elif is_section and isinstance(value, Mapping):
            self.put_all(current, value, path, origin)  # type: ignore[arg-type]
        elif path == "config" and value is None:
            self.merged.refuse(path, "expected keys, got null.", origin)
        elif is_section and value is None and not _null_by_default(node, key):
            return  # `MACHINE:` with nothing under it
        elif is_section and value is not None and fields_of(current):  # type: ignore[arg-type]
            self.merged.refuse(path, f"expected a section with keys, got {value!r}.", origin)
        else:
            self._drop_arguments(node, key, value, path, origin)
            self._store(node, key, value, path, origin)

    def _component_beside(
        self, node: DictConfig, key: str, value: Any, path: str, layer: Mapping[Any, Any]
    ) -> str:
        """Return the component whose argument is next to its name; "": it is a key. A layer's
        arguments belong to the component that it names, also where a later one names another."""
        choosing, above = choosing_keys(node), path.rpartition(".")[0]
        if len(choosing) != 1 or key in node or value is None or isinstance(value, Mapping):
            return ""
        chosen = layer.get(choosing[0]) or self.composition.last_value(f"{above}.{choosing[0]}")
        chosen = chosen or node[choosing[0]]
        name = component_key(chosen) if isinstance(chosen, str) else ""
        if name and name not in node:
            if not self._components_known:
                raise _WaitsError
            registry = components_of(node)
            if registry is not None and registry.may_know(chosen):
                _add_options(node, registry, chosen, above)
        return name if name in node else ""

    def _drop_arguments(
        self, node: DictConfig, key: str, value: Any, path: str, origin: str
    ) -> None:
        """Drop the arguments of a component that an earlier layer named, now that another is."""
        declared = fields_of(node).get(key)
        arguments = declared.metadata.get("arguments") if declared is not None else ""
        origins, above = self.merged.origins, path.rpartition(".")[0]
        if not arguments or path not in origins or value == node[key]:
            return
        OmegaConf.set_struct(node[arguments], False)
        for each in [*node[arguments]]:
            if origins.get(f"{above}.{arguments}.{each}") != origin:
                del node[arguments][each]

    def _store(
        self, node: DictConfig | ListConfig, key: Any, value: Any, path: str, origin: str
    ) -> None:
        if isinstance(node, DictConfig) and not fields_of(node):
            OmegaConf.set_struct(node, False)  # a dict without a dataclass takes any key
        try:
            if isinstance(node, DictConfig) and key in fields_of(node):
                OmegaConf.update(node, key, value, merge=False)  # converts "1e-4" to a float
            else:
                node[key] = value
        except OmegaConfBaseException as error:
            expected = _expected(node, key)
            detail = f"expected {expected}, got {value!r}"
            if expected == "list[str]" and isinstance(value, str):
                detail += f". Write [{value}]"
            if not expected:
                detail = str(error).split("\n")[0]
            if isinstance(error, UnsupportedValueType):
                detail = f"{value!r} cannot be a config value"
            self.merged.refuse(path, f"{detail}.", origin)
            return
        self.merged.origins[path] = origin

    def _known(self, node: DictConfig, key: str, path: str, origin: str, value: Any = None) -> bool:
        """Tell whether `key` may be set. If it is the name of a component, add its options."""
        found = self._expect_keys(node, key)
        if not fields_of(node) or key in node:
            return True
        registry = components_of(node)
        outside = node is self.merged.root and key in node.config
        if outside and origin == COMMAND_LINE:  # VISSL's files have such keys
            self.merged.refuse(path, f"unknown key. Did you mean 'config.{path}'?", origin)
            return False
        if outside:
            self.merged.warnings.append(
                f"{key} has no effect: it is at the top level, not below `config` ({origin})"
            )
            return False
        if found is not None and (owners := owners_of(found.components, key)):
            _report_foreign(self.merged, found, owners, path, origin, value)
            return False
        if registry is None and any(each.startswith(f"{path}.") for each in self._new):
            self._add_new(node, key, value, path)
            return True
        if registry is None:
            theirs = keys_of(found.components) if found is not None else ()
            known = {*map(str, node), *theirs}
            hint = nearest(key, known) or f"Known: {listing(known)}."
            self.merged.refuse(path, f"unknown key. {hint}", origin)
            return False
        return self._add_component(node, key, path, origin)

    def _expect_keys(self, node: DictConfig, key: str) -> Host | None:
        """Wait if the key may be of a component, and the section has no keys of components yet."""
        found = find_host(node)
        own = found is None or key in fields(found.own)
        if not own and id(node) not in self._joined:
            raise _WaitsError
        return found

    def _add_component(self, node: DictConfig, key: str, path: str, origin: str) -> bool:
        """Add the options of a component whose section is set although it is not chosen."""
        registry = components_of(node)
        assert registry is not None
        named = key in map(
            component_key, _list_named(self.composition, path.rpartition(".")[0], node)
        )
        if not self._components_known and (named or registry.may_know(key)):
            raise _WaitsError
        if registry.may_know(key):
            _add_options(node, registry, key, path)
        if key in node:
            return True
        if named:  # another has replaced it; or its import fails, which check.py reports
            if origin == COMMAND_LINE:
                self.merged.warnings.append(f"{path} has no effect: another one is chosen")
            return False
        known = {*map(str, node), *registry.names()}
        hint = nearest(key, known) or f"Known: {listing(known)}."
        instead = absent.instead_of(registry.kind, key)
        if instead:  # if it is chosen, the check of names is an error
            self.merged.warnings.append(f"{path} has no effect: {instead} ({origin})")
            return False
        self.merged.refuse(path, f"neither a key nor the name of a {registry.kind}. {hint}", origin)
        return False

    def assign(self, given: Assignment) -> None:
        """Apply one `key=value` of the command line, like a file that has this key alone."""
        if given.may_be_new and not self._enters_component(given.path):
            self._new.append(f"{given.path}.")
        tree = given.value
        for name in reversed(given.path.split(".")):
            tree = _Walk({name: tree})
        self.put_all(self.merged.root, tree, "", COMMAND_LINE)

    def _enters_component(self, path: str) -> bool:
        """Tell whether the path leads into the options of a component: these take no new keys."""
        node: Any = self.merged.root
        for name in path.split("."):
            if not isinstance(node, DictConfig):
                return False
            if components_of(node) is not None and name not in fields_of(node):
                return True
            node = node.get(name)
        return False

    def _add_new(self, node: DictConfig, key: str, value: Any, path: str) -> None:
        """Add a new key, `+config.NEW=value`, which sslengine never reads."""
        hint = nearest(key, [str(each) for each in node])
        self.merged.warnings.append(
            f"{path} is not a key of sslengine; only your code can read it. {hint}".rstrip()
        )
        OmegaConf.set_struct(node, False)
        node[key] = {} if isinstance(value, Mapping) else None
        OmegaConf.set_struct(node, True)

    def _put_in_list(self, node: ListConfig, tree: _Walk, path: str) -> None:
        """Set an entry of a list, or in one: `config.DATA.TRAIN.TRANSFORMS.0.size=96`."""
        ((name, value),) = tree.items()
        path = f"{path}.{name}"
        if not name.isdigit() or int(name) >= len(node):
            self.merged.refuse(path, f"the list has {len(node)} entries.", COMMAND_LINE)
            return
        entry = node[int(name)]
        if isinstance(value, _Walk) and isinstance(entry, ListConfig):
            self._put_in_list(entry, value, path)
        elif isinstance(value, _Walk) and isinstance(entry, DictConfig):
            self.put_all(entry, value, path, COMMAND_LINE)
        else:
            self._store(node, int(name), value, path, COMMAND_LINE)


class _Walk(dict[str, Any]):
    """One part of a key path of the command line, and what is below it."""


def _null_by_default(node: DictConfig, key: str) -> bool:
    field_ = fields_of(node).get(key)
    return field_ is not None and field_.default is None


def _open(node: DictConfig, key: str) -> None:
    """Create a section, because a key in it is set: one that is null by default, or one in a dict
    of sections with names chosen by the user."""
    current, cls = node._get_node(key) if key in node else None, element_type(node)
    if isinstance(current, DictConfig) and current._is_none() and _null_by_default(node, key):
        node[key] = OmegaConf.structured(current._metadata.ref_type)
    elif cls is not None and key not in node:
        extend(node, key, cls)


def _expected(node: DictConfig | ListConfig, key: Any) -> str:
    field_ = fields_of(node).get(key) if isinstance(node, DictConfig) else None
    if field_ is None:
        return ""
    return str(getattr(field_.type, "__name__", field_.type)).removesuffix(" | None")


# ---- the components that a config names, and the keys that they bring
#
# Most have a section below the one that names them: LOSS.dino_loss. The keys of others are next to
# their name: DATA.TRAIN.IMAGE_COLUMN, of the data sources that DATA.TRAIN names.


def _add_chosen(composition: Composition, path: str, node: DictConfig) -> None:
    """Add the options of the chosen components, even if no YAML sets one of them."""
    registry: Registry[Any] | None = components_of(node)
    if registry is None:
        return
    for key in choosing_keys(node):
        chosen = composition.last_value(f"{path}.{key}") or node[key]
        for name in filter(None, [chosen] if isinstance(chosen, str) else chosen):
            if component_key(name) not in node:
                _add_options(node, registry, name, path)


def _list_named(composition: Composition, path: str, node: DictConfig) -> Iterator[str]:
    """Yield the names of the section's components that any place chooses."""
    for key in choosing_keys(node):
        for value in composition.values(f"{path}.{key}"):
            yield from (each.name for each in named_entries(LOSSES, value))


def _add_options(node: DictConfig, registry: Registry[Any], name: str, where: str) -> None:
    """Add the section of a component to the one that names it."""
    try:
        options = registry.options(name, where)
    except UntrustedError:
        raise
    except ConfigError:
        return  # reported by check.py, with the key path
    if options is not None:
        extend(node, component_key(name), options)
    else:
        OmegaConf.set_struct(node, False)
        node[component_key(name)] = {}
        OmegaConf.set_struct(node, True)


def _list_hosted(config: DictConfig, path: str, node: DictConfig) -> list[str]:
    """Return the components whose keys a section holds in addition to its own."""
    found = find_host(node)
    assert found is not None
    chosen = node[found.chosen_by]
    if path == "config.DATA.TEST" and config.DATA.HOLD_OUT.SHARE:
        chosen = chosen or config.DATA.TRAIN.DATA_SOURCES  # TEST is a part of TRAIN's images
    elif vissl.follows_trunk(config, path):
        chosen = OmegaConf.select(config, path.removeprefix("config.").removesuffix("_head")).name
    return [chosen] if isinstance(chosen, str) and chosen else list(chosen)


def _is_of_component(node: DictConfig, key: str) -> bool:
    """Tell whether a key of the section is one of its components'."""
    found = find_host(node)
    return found is not None and key in fields_of(node) and key not in fields(found.own)


def _report_foreign(
    merged: Merged, found: Host, owners: Sequence[str], path: str, origin: str, value: Any
) -> None:
    """Report a key of a component that is not chosen, if it was set since the others were."""
    section, _, key = path.rpartition(".")
    if merged.number(origin) < merged.place(f"{section}.{found.chosen_by}"):
        return
    default = default_of(fields(options_of(found.components, owners[0]))[key])
    held = origin != COMMAND_LINE and value == vissl.DEFAULT_RATES.get(key)
    if held or value in (None, [], default) or vissl.follows_trunk(merged.config, section):
        return  # the file of an earlier run holds every key
    node = OmegaConf.select(merged.root, section)
    chosen = _list_hosted(merged.config, section, node)
    text = (
        f"it {belongs_to(found.components, key, owners)}; here "
        f"{' and '.join(chosen) or 'none'} is chosen"
    )
    if takes := keys_of(found.components, chosen):
        text += f", which takes {listing(takes)}"
    if found.components is SCHEDULERS:
        text += f". {section}.peak sets the largest value of the whole schedule"
    if vissl.may_set_for_others(found.components, path, origin):
        merged.warnings.append(f"{path} has no effect: {text} ({origin})")
    else:
        merged.refuse(path, f"{text}.", origin)
