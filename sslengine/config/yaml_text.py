"""YAML by OmegaConf's rules: 1e-4 is a number, a date is text, a duplicate key is an error.

It is read by libyaml, where PyYAML was built with it: that takes a tenth of the time of Python's
parser. It is written as OmegaConf.to_yaml writes it, without a copy of each value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from sslengine.errors import readable

_TAG = "tag:yaml.org,2002:"
# PyYAML's own rule has the numbers with a point and a sign in the exponent.
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
_DIGITS = list("-+0123456789")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in known if tag != f"{_TAG}timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(keys) > len(set(keys)):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(  # type: ignore[no-untyped-call]
                None, None, f"duplicate key {readable(twice)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.Dumper):
    """Texts that others would read as numbers, dates, true or false are quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_TAG}float", _EXPONENT, _DIGITS)  # type: ignore[no-untyped-call]
_Dumper.add_implicit_resolver(f"{_TAG}bool", re.compile("[yYnN]$"), list("yYnN"))  # type: ignore[no-untyped-call]


def load(text: str | bytes) -> Any:
    """Raises yaml.YAMLError, ValueError (a number that is none) or RecursionError."""
    return yaml.load(text, _Loader)  # type: ignore[no-untyped-call]


def events(text: str) -> Iterator[Any]:
    """What the parser finds, one after the other, before any value is made of it."""
    return yaml.parse(text, _Loader)  # type: ignore[no-untyped-call,no-any-return]


def dump(value: Any) -> str:
    """Of plain values."""
    text: str = yaml.dump(  # type: ignore[no-untyped-call]
        value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text
