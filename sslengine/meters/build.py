"""Meters from `config.METERS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sslengine.meters.base import Meter
from sslengine.meters.options import MetersOptions
from sslengine.registry import METERS, component_key


def build_meters(options: MetersOptions) -> list[Meter]:
    meters = []
    for name in options.names:
        arguments = cast(Mapping[str, Any], getattr(options, component_key(name), {}))
        meters.append(METERS.get(name, "config.METERS.names")(**arguments))
    return meters
