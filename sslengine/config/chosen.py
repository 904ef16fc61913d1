"""Find which components a config names, and give its sections the keys that they bring.

Most components have a section below the one that names them: LOSS.dino_loss. The keys of others
are next to their name: DATA.TRAIN.IMAGE_COLUMN, of the data sources that DATA.TRAIN names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config import vissl
from sslengine.config.components import belongs_to, keys_of, named_entries, options_of
from sslengine.config.compose import COMMAND_LINE, Composition
from sslengine.config.merged import Merged
from sslengine.config.ranges import default_of, fields
from sslengine.config.sections import (
    Host,
    choosing_keys,
    components_of,
    extend,
    fields_of,
    find_host,
)
from sslengine.errors import ConfigError, UntrustedError, listing
from sslengine.registry import LOSSES, SCHEDULERS, Registry, component_key


def add_chosen(composition: Composition, path: str, node: DictConfig) -> None:
    """Add the options of the chosen components, even if no YAML sets one of them."""
    registry: Registry[Any] | None = components_of(node)
    if registry is None:
        return
    for key in choosing_keys(node):
        chosen = composition.last_value(f"{path}.{key}") or node[key]
        for name in filter(None, [chosen] if isinstance(chosen, str) else chosen):
            if component_key(name) not in node:
                add_options(node, registry, name, path)


def list_named(composition: Composition, path: str, node: DictConfig) -> Iterator[str]:
    """Yield the names of the section's components that any place chooses."""
    for key in choosing_keys(node):
        for value in composition.values(f"{path}.{key}"):
            yield from (name for name, _ in named_entries(LOSSES, value))


def add_options(node: DictConfig, registry: Registry[Any], name: str, where: str) -> None:
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


# ---- keys next to the name


def list_hosted(config: DictConfig, path: str, node: DictConfig) -> list[str]:
    """Return the components whose keys a section holds in addition to its own."""
    found = find_host(node)
    assert found is not None
    chosen = node[found.chosen_by]
    if path == "config.DATA.TEST" and config.DATA.HOLD_OUT.SHARE:
        chosen = chosen or config.DATA.TRAIN.DATA_SOURCES  # TEST is a part of TRAIN's images
    elif vissl.follows_trunk(config, path):
        chosen = OmegaConf.select(config, path.removeprefix("config.").removesuffix("_head")).name
    return [chosen] if isinstance(chosen, str) and chosen else list(chosen)


def is_of_component(node: DictConfig, key: str) -> bool:
    """Tell whether a key of the section is one of its components'."""
    found = find_host(node)
    return found is not None and key in fields_of(node) and key not in fields(found.own)


def report_foreign(
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
    chosen = list_hosted(merged.config, section, node)
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
