"""Merge layers onto the schema: check keys and types, and store the origin of every value.

Mistakes are collected and reported together, each with its key path, its origin (a file or an
argument), what was expected and the nearest right name. Mistakes in sslengine's own keys are
reported first, which needs no imports; then mistakes in the options of components, whose modules
must be imported, and torch with them.

The keys of a section are known once it is known which components it names: until then the values
of others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, UnsupportedValueType

from sslengine import absent
from sslengine.config import vissl
from sslengine.config.chosen import (
    add_chosen,
    add_options,
    is_of_component,
    list_hosted,
    list_named,
    report_foreign,
)
from sslengine.config.components import keys_of, owners_of
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
from sslengine.errors import ConfigError, listing, nearest
from sslengine.registry import component_key


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
        writer.now_or_later(writer.assign, assignment)
    writer.join_sections()
    check_own_keys(merged)
    for path, node in typed_nodes(root.config):
        add_chosen(composition, path, node)
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
        if isinstance(node, Assignment):
            return True
        return OmegaConf.select(self.merged.root, more[2].rpartition(".")[0]) is node

    def join_sections(self) -> None:
        """Give each section that holds keys of components those of the components it names."""
        for path, node in typed_nodes(self.merged.config):
            found = find_host(node)
            if found is not None and id(node) not in self._joined:
                # A wrong name is reported by check.py; an interpolation may need a component.
                with suppress(ConfigError, OmegaConfBaseException):
                    give_keys(node, list_hosted(self.merged.config, path, node))
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
            _open_optional(node, key)
            _open_element(node, key)
        if value is None and is_of_component(node, key):
            value = default_of(fields_of(node)[key])
        current = node._get_node(key) if key in node else None
        is_section = isinstance(current, DictConfig) and not current._is_none()
        if is_section and isinstance(value, Mapping):
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
                add_options(node, registry, chosen, above)
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
        except (OmegaConfBaseException, IndexError) as error:
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
            report_foreign(self.merged, found, owners, path, origin, value)
            return False
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
            component_key, list_named(self.composition, path.rpartition(".")[0], node)
        )
        if not self._components_known and (named or registry.may_know(key)):
            raise _WaitsError
        if registry.may_know(key):
            add_options(node, registry, key, path)
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

    def assign(self, assignment: Assignment) -> None:
        """Apply one `key=value` of the command line."""
        *parents, key = assignment.path.split(".")
        node: Any = self.merged.root
        walked = ""
        # `+` may add new keys, but not to the options of a component.
        may_be_new = assignment.may_be_new
        for name in parents:
            walked = f"{walked}.{name}" if walked else name
            if isinstance(node, DictConfig) and vissl.is_dead(node, name, walked):
                at = walked if absent.dead_key(walked) else assignment.path
                vissl.report_dead(self.merged, at, assignment.value, COMMAND_LINE)
                return
            if isinstance(node, DictConfig) and name not in fields_of(node):
                may_be_new = may_be_new and components_of(node) is None
                if may_be_new and name not in node:
                    self._add_new(node, name, {}, walked)
            if not self._enter(node, name, walked):
                return
            node = node[int(name)] if isinstance(node, ListConfig) else node[name]
        if not isinstance(node, (DictConfig, ListConfig)):
            self.merged.problems.append(f"{walked} is a value, not a section. {COMMAND_LINE}.")
        elif assignment.delete:
            self._delete(node, key, assignment.path)
        elif isinstance(node, ListConfig):
            self._store(node, _index(key), assignment.value, assignment.path, COMMAND_LINE)
        else:
            self._expect_keys(node, key)
            if may_be_new and key not in node and components_of(node) is None:
                self._add_new(node, key, None, assignment.path)
            self.put(node, key, assignment.value, assignment.path, COMMAND_LINE)

    def _add_new(self, node: DictConfig, key: str, value: Any, path: str) -> None:
        """Add a new key, `+config.NEW=value`, which sslengine never reads."""
        if fields_of(node):
            hint = nearest(key, [str(each) for each in node])
            self.merged.warnings.append(
                f"{path} is not a key of sslengine; only your code can read it. {hint}".rstrip()
            )
        OmegaConf.set_struct(node, False)
        node[key] = value
        OmegaConf.set_struct(node, True)

    def _enter(self, node: Any, name: str, path: str) -> bool:
        if isinstance(node, ListConfig):
            index = _index(name)
            if isinstance(index, int) and -len(node) <= index < len(node):
                return True
            self.merged.problems.append(
                f"{path}: the list has {len(node)} entries. {COMMAND_LINE}."
            )
            return False
        if not isinstance(node, DictConfig):
            self.merged.problems.append(f"{path} is not in a section. {COMMAND_LINE}.")
            return False
        if not self._known(node, name, path, COMMAND_LINE):
            return False
        if name not in node:
            node[name] = {}
        _open_optional(node, name)
        return True

    def _delete(self, node: DictConfig | ListConfig, key: str, path: str) -> None:
        if isinstance(node, DictConfig) and fields_of(node):
            self.merged.problems.append(f"~{path}: a key of sslengine cannot be deleted; set it.")
            return
        OmegaConf.set_struct(node, False)
        try:
            del node[_index(key) if isinstance(node, ListConfig) else key]  # type: ignore[arg-type]
        except (ConfigKeyError, KeyError, IndexError, TypeError):
            self.merged.problems.append(f"~{path}: there is nothing to delete.")


def _null_by_default(node: DictConfig, key: str) -> bool:
    field_ = fields_of(node).get(key)
    return field_ is not None and field_.default is None


def _open_optional(node: DictConfig, key: str) -> None:
    """Create a section that is null by default, because a key in it is set."""
    current = node._get_node(key) if _null_by_default(node, key) else None
    if isinstance(current, DictConfig) and current._is_none():
        node[key] = OmegaConf.structured(current._metadata.ref_type)


def _open_element(node: DictConfig, key: str) -> None:
    """Create a section with a name chosen by the user, in a dict of sections."""
    cls = element_type(node)
    if cls is not None and key not in node:
        extend(node, key, cls)


def _index(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _expected(node: DictConfig | ListConfig, key: Any) -> str:
    field_ = fields_of(node).get(key) if isinstance(node, DictConfig) else None
    if field_ is None:
        return ""
    return str(getattr(field_.type, "__name__", field_.type)).removesuffix(" | None")
