"""`--show`: the resolved config as YAML, with the origin of every value that is not a default."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from sslengine.config.resolve import Resolved
from sslengine.config.stored import as_stored
from sslengine.errors import readable


def show(resolved: Resolved) -> str:
    """YAML that could be run as it stands, but for masked secrets; origins are comments."""
    lines = ["# @package _global_"]
    for key in ("engine_name", "node_id"):
        origin = resolved.origins.get(key)
        lines.append(_line(0, f"{key}: {getattr(resolved, key)}", origin))
    lines.append("config:")
    stored = as_stored(resolved.config, resolved.texts)
    lines.extend(_section(stored, "config", resolved.origins, depth=1))
    return "\n".join(lines) + "\n"


def _section(node: dict[str, Any], path: str, origins: dict[str, str], depth: int) -> list[str]:
    lines = []
    for key, value in node.items():
        child = f"{path}.{key!s}"
        if isinstance(value, dict) and value:
            lines.append(_line(depth, f"{key!s}:", origins.get(child)))
            lines.extend(_section(value, child, origins, depth + 1))
        else:
            lines.extend(_leaf(str(key), value, depth, _origin(child, origins)))
    return lines


def _leaf(key: str, value: object, depth: int, origin: str | None) -> list[str]:
    plain = OmegaConf.to_yaml(OmegaConf.create({key: value})).rstrip("\n").split("\n")
    return [_line(depth, plain[0], origin), *("  " * depth + line for line in plain[1:])]


def _origin(path: str, origins: dict[str, str]) -> str | None:
    """That of the value, or of an entry inside it (`TRANSFORMS.0.size=96`), the last one set."""
    inside = [origin for each, origin in origins.items() if each.startswith(f"{path}.")]
    return inside[-1] if inside else origins.get(path)


def _line(depth: int, text: str, origin: str | None) -> str:
    indented = "  " * depth + text
    return f"{indented:<60}  # {readable(origin)}" if origin else indented
