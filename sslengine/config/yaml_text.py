"""YAML by OmegaConf's rules: 1e-4 is a number, a date is text, a duplicate key is an error.

It is read by libyaml, where PyYAML was built with it: that takes a tenth of the time of Python's
parser. What is written is read as the same value by OmegaConf and by PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sslengine.atomic import open_no_link
from sslengine.config.ranges import leaves
from sslengine.errors import NOT_READ, ConfigError, readable

_TAG = "tag:yaml.org,2002:"
DEEPEST = 100  # levels; a config of sslengine has about 10
LONGEST = 100  # digits of a whole number; Python refuses to read or to print very long ones
# PyYAML's own rule takes numbers for text whose exponent has no sign, or that have no point.
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
_BREAKS = re.compile("[\x85\u2028\u2029]")
_DIGITS = list("-+0123456789")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in known if tag != f"{_TAG}timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise yaml.constructor.ConstructorError(  # type: ignore[no-untyped-call]
                    None, None, f"duplicate key {readable(key.value)}", key.start_mark
                )
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > LONGEST:
            raise yaml.YAMLError(
                f"a number of {len(node.value)} digits is refused{node.start_mark}"
            )
        return super().construct_yaml_int(node)  # type: ignore[no-untyped-call, no-any-return]


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)  # type: ignore[no-untyped-call]


class _Dumper(yaml.Dumper):
    """Texts that others would read as numbers, dates, true or false are quoted, and those with
    line breaks of Unicode, which are folded like spaces if they are not escaped."""

    def represent_str(self, data: str) -> Any:
        style = '"' if _BREAKS.search(data) else None
        return self.represent_scalar(f"{_TAG}str", data, style)  # type: ignore[no-untyped-call]

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_TAG}float", _EXPONENT, _DIGITS)  # type: ignore[no-untyped-call]
_Dumper.add_implicit_resolver(f"{_TAG}bool", re.compile("[yYnN]$"), list("yYnN"))  # type: ignore[no-untyped-call]
_Dumper.add_representer(str, _Dumper.represent_str)  # type: ignore[no-untyped-call]


def load(text: str | bytes, refused: Callable[[Any], str] = lambda event: "") -> Any:
    """Read YAML; raise yaml.YAMLError, ValueError (a number that is none) or RecursionError.

    refused: of each event of the parser, before any value is made of it, what must not be there.
    """
    depth = 0  # libyaml goes down by calls in C, which nothing else ends
    for event in yaml.parse(text, _Loader):  # type: ignore[no-untyped-call]
        depth += isinstance(event, yaml.events.CollectionStartEvent)
        depth -= isinstance(event, yaml.events.CollectionEndEvent)
        what = f"more than {DEEPEST} levels is refused" if depth > DEEPEST else refused(event)
        if what:
            raise yaml.constructor.ConstructorError(  # type: ignore[no-untyped-call]
                None, None, what, event.start_mark
            )
    return yaml.load(text, _Loader)  # type: ignore[no-untyped-call]


def load_run(
    text: str | bytes,
    where: str,
    refused: Callable[[Any], str] = lambda event: "",
    expected: str = "valid",
) -> dict[str, Any]:
    """Return the tree of a run's config.yaml. A ConfigError begins with where."""
    try:
        tree = load(text, refused)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"{where}: not {expected} YAML: {error or type(error).__name__}"
        ) from error
    if not isinstance(tree, dict) or not isinstance(tree.get("config"), dict):
        raise ConfigError(f"{where}: expected `config:` with keys below it, as a run writes it.")
    return tree


def dump(value: Any) -> str:
    """Write plain values."""
    text: str = yaml.dump(  # type: ignore[no-untyped-call]
        value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


# ---- an untrusted file, read as plain values

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
    return tree if whole else _drop_interpolations(tree), found


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


def _drop_interpolations(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_interpolations(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_drop_interpolations(each) for each in value]
    return value.replace("${", NOT_READ) if isinstance(value, str) else value
