"""Parameters by patterns of names: those of the model, trunk.* and heads.0.*, and loss.*."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from sslengine.errors import ConfigError, listing, nearest


def matching(model: nn.Module, pattern: str, where: str) -> list[nn.Parameter]:
    """The trainable parameters that the pattern matches; ConfigError if there are none."""
    named = dict(model.named_parameters())
    found = [each for name, each in named.items() if fnmatchcase(name, pattern)]
    trained = [each for each in found if each.requires_grad]
    if trained:
        return trained
    if found:
        raise ConfigError(f"{where}: all parameters that {pattern!r} matches are frozen.")
    names = [name for name, each in named.items() if each.requires_grad]
    raise ConfigError(
        f"{where}: {pattern!r} matches no parameter. {nearest(pattern, _patterns(names))}\n"
        f"  Known: {listing(names)}"
    )


def _patterns(names: Collection[str]) -> list[str]:
    """The names, and those of all modules around them, as `module.*`."""
    found = set(names)
    for name in names:
        parts = name.split(".")
        found |= {".".join([*parts[:depth], "*"]) for depth in range(1, len(parts))}
    return sorted(found)
