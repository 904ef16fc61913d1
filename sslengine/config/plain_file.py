"""Read an untrusted YAML file as plain values.

The file cannot include others (`defaults:`) or move its keys (a package header), and has no tags,
no aliases (a few lines of them can expand to gigabytes) and no interpolations, so it cannot read
the environment. `${oc.env:TOKEN}` becomes the text `$not_read{oc.env:TOKEN}`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sslengine.atomic import open_no_link
from sslengine.config.ranges import leaves
from sslengine.config.yaml_text import load_run
from sslengine.errors import NOT_READ, ConfigError, readable

LARGEST = 4 * 2**20  # bytes; a config of sslengine has about 30,000


def read_plain(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the file's tree, and the key paths whose interpolations were not read."""
    return parse_plain(read_content(path), path)


def parse_plain(
    content: bytes, path: Path, whole: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Do the same with content that was read before. whole: keep the interpolations."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error
    tree = load_run(text, str(path), _not_plain, expected="plain")
    if "defaults" in tree:
        raise ConfigError(
            f"{path}: defaults: this file includes others, which is refused because it was opened "
            f"without trust. If you trust it: --trust-config."
        )
    found = [
        readable(path.lstrip("."))
        for path, value in leaves({} if whole else tree, "")
        if isinstance(value, str) and "${" in value
    ]
    return tree if whole else _without_interpolations(tree), found


def read_content(path: Path) -> bytes:
    """Read a regular file. Links are refused, because they may lead to any file of the user."""
    try:
        with open(path, "rb", opener=open_no_link) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        linked = ". It is a link: give the folder that it leads to" if path.is_symlink() else ""
        raise ConfigError(f"{path} cannot be read: {error.strerror}{linked}.") from error
    if len(content) > LARGEST:
        raise ConfigError(f"{path} has more than {LARGEST} bytes: not the config of a run.")
    return content


def _not_plain(event: Any) -> str:
    if isinstance(event, yaml.events.AliasEvent) or getattr(event, "anchor", None) is not None:
        what = "an anchor or alias"
    elif getattr(event, "tag", None) is not None:
        what = f"the tag {event.tag}"
    else:
        return ""
    return f"{what} is refused in a file that was opened without trust"


def _without_interpolations(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_interpolations(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_interpolations(each) for each in value]
    return value.replace("${", NOT_READ) if isinstance(value, str) else value
