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
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, UnsupportedValueType

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
    named,
    put_in,
    schema,
    typed_nodes,
)
from sslengine.config.stored import Path, interpolations, is_fixed, is_secret, texts_of_environment
from sslengine.errors import ConfigError, UntrustedError, listing, nearest
from sslengine.registry import ENGINES, LOSSES, SCHEDULERS, Registry, component_key

BY_DEFAULT = -1  # in place of the number of a place


@dataclass
class Root:
    """The top-level keys of a YAML file and of the command line."""

    # What to do: train, extract_features, evaluate, ...
    engine_name: str = named(ENGINES, "train")
    # The index of this node among several nodes, from 0.
    node_id: int = 0
    config: Any = None


@dataclass
class Merged:
    """The config while it is resolved, and what is known of it."""

    composition: Composition
    root: DictConfig
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # Interpolations that read the environment, as text: see stored.py.
    texts: dict[Path, str] = field(default_factory=dict)

    @property
    def config(self) -> DictConfig:
        return self.root.config  # type: ignore[no-any-return]

    def raise_problems(self) -> None:
        if self.problems:
            problems = list(dict.fromkeys(self.problems))
            more = [f"... and {len(problems) - 12} more"] if len(problems) > 12 else []
            raise ConfigError("\n".join([*problems[:12], *more]))

    def place(self, path: str) -> int:
        """Return which place set a key, or one below it, last: later places have larger numbers."""
        below = f"{path}."
        given = {its for key, its in self.origins.items() if key == path or key.startswith(below)}
        return max(map(self.number, given), default=BY_DEFAULT)

    def number(self, origin: str) -> int:
        """Return the number of a place: a file's, or the larger one of the command line."""
        files = [layer.origin for layer in self.composition.layers]
        return files.index(origin) if origin in files else len(files)

    @property
    def command_line(self) -> int:
        return len(self.composition.layers)


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
        writer.add_chosen(path, node)
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

    def add_chosen(self, path: str, node: DictConfig) -> None:
        """Add the options of the chosen components, even if no YAML sets one of them."""
        registry: Registry[Any] | None = components_of(node)
        if registry is None:
            return
        for key in choosing_keys(node):
            chosen = self.composition.last_value(f"{path}.{key}") or node[key]
            for name in filter(None, [chosen] if isinstance(chosen, str) else chosen):
                if component_key(name) not in node:
                    self._add_options(node, registry, name, path)

    def _ever_named(self, path: str, node: DictConfig) -> Iterator[str]:
        """Yield the names of the section's components that any place chooses."""
        for key in choosing_keys(node):
            for value in self.composition.values(f"{path}.{key}"):
                yield from (name for name, _ in named_entries(LOSSES, value))

    def _add_options(
        self, node: DictConfig, registry: Registry[Any], name: str, where: str
    ) -> None:
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

    def put_all(self, node: DictConfig, tree: Mapping[Any, Any], path: str, origin: str) -> None:
        for key, value in tree.items():
            below = f"{path}.{key}" if path else str(key)
            self.now_or_later(self.put, node, str(key), value, below, origin)

    def put(self, node: DictConfig, key: str, value: Any, path: str, origin: str) -> None:
        if vissl.is_dead(node, key, path):
            vissl.report_dead(self.merged, path, value, origin)
            return
        if not self._known(node, key, path, origin, value):
            return
        if isinstance(value, Mapping):
            _open_optional(node, key)
            _open_element(node, key)
        if value is None and _is_of_component(node, key):
            value = default_of(fields_of(node)[key])
        current = node._get_node(key) if key in node else None
        is_section = isinstance(current, DictConfig) and not current._is_none()
        if is_section and isinstance(value, Mapping):
            self.put_all(current, value, path, origin)  # type: ignore[arg-type]
        elif path == "config" and value is None:
            self.merged.problems.append(f"config: expected keys, got null. Set by {origin}.")
        elif is_section and value is None and not _null_by_default(node, key):
            return  # `MACHINE:` with nothing under it
        elif is_section and value is not None and fields_of(current):  # type: ignore[arg-type]
            self.merged.problems.append(
                f"{path}: expected a section with keys, got {value!r}. Set by {origin}."
            )
        else:
            self._drop_arguments(node, key, value, path, origin)
            self._store(node, key, value, path, origin)

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
            self.merged.problems.append(f"{path}: {detail}. Set by {origin}.")
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
            self.merged.problems.append(
                f"{path}: unknown key. Did you mean 'config.{path}'? Set by {origin}."
            )
            return False
        if outside:
            self.merged.warnings.append(
                f"{key} has no effect: it is at the top level, not below `config` ({origin})"
            )
            return False
        if found is not None and (owners := owners_of(found.components, key)):
            self._report_foreign(found, owners, path, origin, value)
            return False
        if registry is None:
            theirs = keys_of(found.components) if found is not None else {}
            known = dict.fromkeys(map(str, node)) | theirs
            hint = nearest(key, known) or f"Known: {listing(known)}."
            self.merged.problems.append(f"{path}: unknown key. {hint} Set by {origin}.")
            return False
        return self._add_component(node, key, path, origin)

    def _expect_keys(self, node: DictConfig, key: str) -> Host | None:
        """Wait if the key may be of a component, and the section has no keys of components yet."""
        found = find_host(node)
        own = found is None or key in fields(found.own)
        if not own and id(node) not in self._joined:
            raise _WaitsError
        return found

    def _report_foreign(
        self, found: Host, owners: Sequence[str], path: str, origin: str, value: Any
    ) -> None:
        """Report a key of a component that is not chosen, if it was set since the others were."""
        section, _, key = path.rpartition(".")
        if self.merged.number(origin) < self.merged.place(f"{section}.{found.chosen_by}"):
            return
        default = default_of(fields(options_of(found.components, owners[0]))[key])
        held = origin != COMMAND_LINE and value == vissl.DEFAULT_RATES.get(key)
        if held or value in (None, [], default):
            return  # the file of an earlier run holds every key
        node = OmegaConf.select(self.merged.root, section)
        chosen = list_hosted(self.merged.config, section, node)
        text = (
            f"it {belongs_to(found.components, key, owners)}; here "
            f"{' and '.join(chosen) or 'none'} is chosen"
        )
        if takes := keys_of(found.components, chosen):
            text += f", which takes {listing(takes)}"
        if found.components is SCHEDULERS:
            text += f". {section}.peak sets the largest value of the whole schedule"
        if vissl.may_set_for_others(found.components, path, origin):
            self.merged.warnings.append(f"{path} has no effect: {text} ({origin})")
        else:
            self.merged.problems.append(f"{path}: {text}. Set by {origin}.")

    def _add_component(self, node: DictConfig, key: str, path: str, origin: str) -> bool:
        """Add the options of a component whose section is set although it is not chosen."""
        registry = components_of(node)
        assert registry is not None
        named = key in map(component_key, self._ever_named(path.rpartition(".")[0], node))
        if not self._components_known and (named or registry.may_know(key)):
            raise _WaitsError
        if registry.may_know(key):
            self._add_options(node, registry, key, path)
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
        self.merged.problems.append(
            f"{path}: neither a key nor the name of a {registry.kind}. {hint} Set by {origin}."
        )
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
        """`+config.NEW=value` adds a new key, which sslengine never reads."""
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


def list_hosted(config: DictConfig, path: str, node: DictConfig) -> list[str]:
    """Return the components whose keys a section holds beside its own."""
    found = find_host(node)
    assert found is not None
    chosen = node[found.chosen_by]
    if path == "config.DATA.TEST" and config.DATA.HOLD_OUT.SHARE:
        chosen = chosen or config.DATA.TRAIN.DATA_SOURCES  # TEST is a part of TRAIN's images
    elif path.endswith(".param_schedulers.lr_head"):
        chosen = vissl.schedule_of_heads(config, path)
    return [chosen] if isinstance(chosen, str) and chosen else list(chosen)


def _is_of_component(node: DictConfig, key: str) -> bool:
    found = find_host(node)
    return found is not None and key in fields_of(node) and key not in fields(found.own)


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
