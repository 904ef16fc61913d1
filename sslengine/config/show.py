"""`--show`: the resolved config as YAML, with the origin of every value that is not a default.

`--show --all`: the same in lines of 80 characters, with the meaning of every key above it.
"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config.components import meaning_of_section, meanings
from sslengine.config.resolve import Resolved
from sslengine.config.stored import as_stored
from sslengine.config.yaml_text import dump
from sslengine.errors import readable

_WIDTH = 80


def show(resolved: Resolved, explained: bool = False) -> str:
    """Return the config as YAML that can be run unchanged, except masked secrets."""
    shown = _Shown(resolved.origins, explained)
    for key in ("engine_name", "node_id"):
        shown.put(f"{key}: {getattr(resolved, key)}", 0, resolved.origins.get(key))
    shown.put("config:", 0)
    stored = as_stored(resolved.config, resolved.texts)
    shown.put_section(stored, resolved.config, "config", depth=1)
    return "\n".join(shown.lines) + "\n"


class _Shown:
    def __init__(self, origins: dict[str, str], explained: bool) -> None:
        self.origins, self.explained = origins, explained
        self.lines = ["# @package _global_"]

    def put_section(self, stored: dict[str, Any], node: Any, path: str, depth: int) -> None:
        """stored: the values to print; node: the same section of the config, with its types."""
        for key, value in stored.items():
            child = f"{path}.{key!s}"
            inside = node._get_node(key) if isinstance(node, DictConfig) else None
            meaning = _meaning(node, key, inside) if self.explained else ""
            if isinstance(value, dict) and value:
                self.put(f"{key!s}:", depth, self.origins.get(child), meaning)
                self.put_section(value, inside, child, depth + 1)
            else:
                lines = _yaml({str(key): value})
                if isinstance(value, str):  # a long one is folded: its origin follows its end
                    lines = ["\n".join(lines)]
                first, *more = lines
                self.put(first, depth, _origin(child, self.origins), meaning)
                self.lines += ["  " * depth + line for line in more]

    def put_comment(self, text: str, begin: str) -> None:
        self.lines += textwrap.wrap(
            text, _WIDTH, initial_indent=f"{begin}# ", subsequent_indent=f"{begin}# ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip

    def put(self, text: str, depth: int, origin: str | None = None, meaning: str = "") -> None:
        indented = textwrap.indent(text, "  " * depth)
        if not self.explained:
            self.lines.append(f"{indented:<60}  # {readable(origin)}" if origin else indented)
            return
        if depth == 1:
            self.lines.append("")
        for comment in (meaning, f"[{readable(origin)}]" if origin else ""):
            self.put_comment(comment, "  " * depth)
        self.lines.append(indented)


def _yaml(value: Any) -> list[str]:
    return dump(value).rstrip("\n").split("\n")


def _meaning(node: Any, key: Any, inside: Any) -> str:
    """Return the comment of the key's field, or else the docstring of the section."""
    declared = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
    section = OmegaConf.get_type(inside) if isinstance(inside, DictConfig) else None
    own = meanings(declared).get(str(key), "") if dataclasses.is_dataclass(declared) else ""
    of_section = meaning_of_section(section) if dataclasses.is_dataclass(section) else ""
    return own or of_section


def _origin(path: str, origins: dict[str, str]) -> str | None:
    """Return the origin of the value, or of the last entry set in it (`TRANSFORMS.0.size=96`)."""
    inside = [origin for each, origin in origins.items() if each.startswith(f"{path}.")]
    return inside[-1] if inside else origins.get(path)
