"""Routes: which features of the trunk, computed from which input, go into which heads.

Routes are read from `HEAD.PARAMS`, `MULTI_INPUT_HEAD_MAPPING` and `LINEAR_EVAL_FEAT_POOL_OPS_MAP`
before anything is built, so that contradictions are reported while the config is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sslengine.config.facts import AUTO
from sslengine.errors import ConfigError

log = logging.getLogger("sslengine")

POOL_OPS = ("AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "MaxPool2d", "Identity")
FEATURES_KEY = "FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"
MAPPING_KEY = "MULTI_INPUT_HEAD_MAPPING"
MAPPING_OPTIONS = ("feat_names", "head_index", "additional_keys")


@dataclass(frozen=True)
class HeadSpec:
    """The modules of one entry of HEAD.PARAMS, as (name, arguments); they run as a chain.

    nested: the entry is a list of modules, not one module.
    """

    modules: tuple[tuple[str, dict[str, Any]], ...]
    nested: bool


@dataclass(frozen=True)
class PoolSpec:
    """A feature of the trunk and the pooling that follows it."""

    feature: str
    operation: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Route:
    """The features and heads of one input. Without heads, the features are the output."""

    # The input's key in the dict of inputs; "" if there is a single input.
    key: str = ""
    # Empty: the trunk's final feature.
    features: tuple[str, ...] = ()
    # Indices into HEAD.PARAMS.
    heads: tuple[int, ...] = ()
    # Each head gets the output of the one before, instead of its feature.
    chained: bool = False
    # Other entries of the dict of inputs that the trunk gets in addition to this one.
    additional_keys: tuple[str, ...] = ()
    # The key path that names the features, for errors.
    where: str = ""


def plan_routes(
    heads: Sequence[Any],
    pooled: Sequence[Any],
    mapping: Sequence[Any],
    trunk_only: bool,
    where: str = "",
) -> list[Route]:
    """Return a route for each input. `where` is the prefix of key paths in errors."""
    specs = head_specs(heads, f"{where}HEAD.PARAMS")
    pools = pool_specs(pooled, f"{where}{FEATURES_KEY}")
    if not mapping:
        return [_single_route([] if trunk_only else specs, pools, where)]
    if pools:
        raise ConfigError(f"{where}{MAPPING_KEY}: cannot be combined with {FEATURES_KEY}.")
    routes = _mapped_routes(mapping, len(specs), trunk_only, f"{where}{MAPPING_KEY}")
    unused = set(range(len(specs))) - {head for route in routes for head in route.heads}
    if unused and not trunk_only:
        raise ConfigError(f"{where}HEAD.PARAMS.{min(unused)}: no input of {MAPPING_KEY} uses it.")
    return routes


def head_specs(params: Sequence[Any], where: str) -> list[HeadSpec]:
    """Parse the entries of HEAD.PARAMS."""
    specs = []
    for index, entry in enumerate(params):
        path = f"{where}.{index}"
        nested = _is_list(entry) and len(entry) > 0 and not isinstance(entry[0], str)
        modules = entry if nested else [entry]
        specs.append(HeadSpec(tuple(_module(each, path) for each in modules), nested))
    return specs


def pool_specs(entries: Sequence[Any], where: str) -> list[PoolSpec]:
    """Parse the entries of LINEAR_EVAL_FEAT_POOL_OPS_MAP."""
    specs = []
    for index, entry in enumerate(entries):
        match entry:
            case [str(feature), [str(operation), [*arguments]]] if operation in POOL_OPS:
                specs.append(PoolSpec(feature, operation, tuple(arguments)))
            case [str(), [str(operation), [*_]]]:
                raise ConfigError(
                    f"{where}.{index}: there is no pooling {operation!r}. "
                    f"Known: {', '.join(POOL_OPS)}."
                )
            case _:
                raise ConfigError(
                    f'{where}.{index}: expected ["feature", ["pooling", [its arguments]]], '
                    f"got {entry!r}."
                )
    return specs


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _module(entry: Any, where: str) -> tuple[str, dict[str, Any]]:
    match entry:
        case str(name) | [str(name)]:
            return name, {}
        case [str(name), Mapping() as arguments, *rest]:
            if rest:
                _warn_of_ignored(where, repr(rest[0]))
            _expect_auto_first(arguments, where)
            return name, {str(key): value for key, value in arguments.items()}
    raise ConfigError(
        f'{where}: expected ["name", {{arguments}}], or a list of such; got {entry!r}.'
    )


def _expect_auto_first(arguments: Mapping[Any, Any], where: str) -> None:
    for key, value in arguments.items():
        if _is_list(value) and AUTO in (value[1:-1] if key == "dims" else value[1:]):
            raise ConfigError(
                f"{where}.1.{key}: {AUTO} is the width of the feature as the first number, and the "
                f"number of classes as the last of dims; got {list(value)}."
            )


@cache  # heads are parsed several times; one warning is enough
def _warn_of_ignored(where: str, what: str) -> None:
    log.warning(
        "%s: %s follows the arguments of a head and has no effect, as in VISSL. "
        "Should it be one of the arguments?",
        where,
        what,
    )


def _single_route(specs: list[HeadSpec], pools: list[PoolSpec], where: str) -> Route:
    features = tuple(pool.feature for pool in pools)
    num_features = len(features) or 1
    heads = tuple(range(len(specs)))
    nested = any(spec.nested for spec in specs)
    if heads and num_features > 1 and len(heads) != num_features:
        raise ConfigError(
            f"{where}HEAD.PARAMS: {len(heads)} heads for the {num_features} features of "
            f"{FEATURES_KEY}; give as many heads as features."
        )
    chained = len(heads) > 1 and num_features == 1 and not nested
    return Route("", features, heads, chained, where=f"{where}{FEATURES_KEY}")


def _mapped_routes(
    mapping: Sequence[Any], num_heads: int, trunk_only: bool, where: str
) -> list[Route]:
    routes: list[Route] = []
    for index, entry in enumerate(mapping):
        path = f"{where}.{index}"
        key, options = _mapping_entry(entry, path)
        if any(route.key == key for route in routes):
            raise ConfigError(f"{path}: the input {key!r} is mapped twice.")
        features, additional = (
            tuple(map(str, options.get(name) or ())) for name in ("feat_names", "additional_keys")
        )
        heads: tuple[int, ...] = ()
        if num_heads and not trunk_only:
            heads = _heads_of(options.get("head_index"), index, features, num_heads, path)
        routes.append(Route(key, features, heads, False, additional, path))
    return routes


def _heads_of(
    given: Any, index: int, features: tuple[str, ...], num_heads: int, path: str
) -> tuple[int, ...]:
    given = min(index, num_heads - 1) if given is None else given
    heads = tuple(given) if _is_list(given) else (given,)
    for each in heads:
        if not isinstance(each, int) or not 0 <= each < num_heads:
            raise ConfigError(f"{path}.head_index: there are {num_heads} heads; got {each}.")
    if len(features) > 1 and len(heads) != len(features):
        raise ConfigError(
            f"{path}: a head reads one feature, got {list(features)}; "
            f"head_index can be a list with a head for each."
        )
    return heads


def _mapping_entry(entry: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    """Return the input's key and its options."""
    match entry:
        case [str(key), Mapping() as options]:
            for name in options:
                if name not in MAPPING_OPTIONS:
                    raise ConfigError(
                        f"{where}.{name}: unknown key. Known: {', '.join(MAPPING_OPTIONS)}."
                    )
            return key, options
        case [str(key), [*names]]:
            return key, {"feat_names": names}
    raise ConfigError(
        f'{where}: expected ["input key", [features]] or '
        f'["input key", {{feat_names: [...], head_index: 0}}], got {entry!r}.'
    )
