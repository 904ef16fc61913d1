"""What a file of weights holds, by the model's names.

It may be a checkpoint of sslengine or VISSL, a plain state dict with the prefixes that are given,
or a checkpoint of a family in checkpoint_families.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sslengine.data.decode.files import how_far
from sslengine.errors import CheckpointError, MissingCheckpointError, listing, nearest
from sslengine.models.checkpoint_families import recognise
from sslengine.models.named_tensors import beside_trunk, flat, part_of, skipped, without
from sslengine.models.networks import choose
from sslengine.models.options import WeightsInitOptions
from sslengine.models.tensor_names import in_trunks_names, of_others
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.weight_file import NeedsCodeError, read_network

LOG = logging.getLogger("sslengine")
WHERE = "config.MODEL.WEIGHTS_INIT"
# Advice for a run's weights, which a teacher's have no keys for.
TO_TRUST = f" Only if it is your own: --trust-pickle ({WHERE}.TRUST_PICKLE=true)."
# VISSL wraps the trunk in another module where features are extracted.
_EXTRACTOR = "trunk.base_model."


@dataclass(frozen=True)
class Given:
    """What is in a file, by the model's names."""

    tensors: dict[str, Tensor]
    network: str
    classes: tuple[tuple[str, ...], ...] = ()
    not_taken: tuple[str, ...] = ()
    kind: str = ""
    # What else the file holds.
    unread: str = ""


def expect_file_of(weights: WeightsInitOptions) -> None:
    """Raise if PARAMS_FILE names nothing that is there."""
    path = weights.PARAMS_FILE
    if "://" in path or path.startswith("hf-hub:"):
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: {path} is an address; download the file and give its path."
        )
    if not Path(path).exists():
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: there is no file {path!r}: {how_far(Path(path))}"
        )


def read_file(weights: WeightsInitOptions) -> Any:
    """What PARAMS_FILE holds."""
    expect_file_of(weights)
    try:
        return read_network(Path(weights.PARAMS_FILE), weights.TRUST_PICKLE)
    except NeedsCodeError as error:
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {error} Load it where it was made and save the tensors alone: "
            f"torch.save(model.state_dict(), ...).{TO_TRUST}"
        ) from error
    except CheckpointError as error:
        raise CheckpointError(f"{WHERE}.PARAMS_FILE: {error}") from error


def of_family(trunk: Trunk, held: Any, weights: WeightsInitOptions) -> Given | None:
    """The trunk of another program's checkpoint; None if it is none, or prefixes are given."""
    if weights.says_where() or _is_of_vissl(held):
        return None
    found = recognise(held, weights.NETWORK, weights.PARAMS_FILE)
    if found is None or any(name.startswith("trunk.") for name in found.tensors):
        return None
    named = in_trunks_names(trunk, without(found.tensors, weights.SKIP_LAYERS))
    others = of_others(trunk, list(named.tensors))
    not_taken = sorted((*others, *named.outside))
    unread = [f"{name} ({each})" for name, each in found.beside.items()]
    if not_taken:
        unread.append(f"of the network {listing(not_taken, 6)}")
    kind = f"a checkpoint of {found.family}"
    kind += f", with names of {named.library}" if named.library else ""
    tensors = {f"trunk.{n}": each for n, each in named.tensors.items() if n not in others}
    return Given(
        tensors, found.network, not_taken=tuple(not_taken), kind=kind, unread=", ".join(unread)
    )


def _is_of_vissl(held: Any) -> bool:
    key = WeightsInitOptions.STATE_DICT_KEY_NAME
    return isinstance(held, Mapping) and (key in held or _parts(held) is not None)


def of_vissl(
    trunk: Trunk, expected: Sequence[str], held: Any, weights: WeightsInitOptions
) -> Given:
    """A checkpoint of sslengine or VISSL, or a state dict with the prefixes that are given."""
    content = _content(trunk, held, weights)
    classes = _classes_in(content)
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    parts = {"trunk", "heads", *(name.partition(".")[0] for name in expected)}
    named = without(_named_tensors(content, weights, parts), weights.SKIP_LAYERS)
    return Given(_in_our_names(trunk, named), network, classes)


def of_custom_model(held: Any, weights: WeightsInitOptions) -> Given:
    """All of a model that is no trunk with heads."""
    content = _inside(held, _key_path(held, weights), weights.PARAMS_FILE)
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    parts = _parts(content)
    return Given(_renamed(content, weights) if parts is None else flat(parts), network)


def _content(trunk: Trunk, held: Any, weights: WeightsInitOptions) -> Mapping[str, Any]:
    """What the state dict is in, or the trunk's tensors where a library saved a network."""
    content = _inside(held, _key_path(held, weights), weights.PARAMS_FILE)
    prefixed = any(name.startswith("trunk.") for name in content)
    plain = all(isinstance(each, Tensor) for each in content.values())
    if not (isinstance(trunk, ByName) and plain) or weights.APPEND_PREFIX or prefixed:
        return content
    named = {name.removeprefix(weights.REMOVE_PREFIX): each for name, each in content.items()}
    return {"trunk": {n: each for n, each in named.items() if not n.startswith(trunk.left_out)}}


def _key_path(held: Any, weights: WeightsInitOptions) -> list[str]:
    """safetensors hold names and tensors, and nothing that they could lie in."""
    unset = weights.STATE_DICT_KEY_NAME == WeightsInitOptions.STATE_DICT_KEY_NAME
    if weights.PARAMS_FILE.endswith(".safetensors"):
        if weights.key_path() and not unset:
            raise CheckpointError(
                f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} has no keys: safetensors hold "
                f"names and tensors. Leave it out."
            )
        return []
    plain = isinstance(held, Mapping) and all(isinstance(each, Tensor) for each in held.values())
    return [] if plain and unset else weights.key_path()


def _inside(content: Any, keys: Sequence[str], path: str) -> Mapping[str, Any]:
    for key in keys:
        if not isinstance(content, Mapping):
            break
        if key not in content:
            raise CheckpointError(
                f"{WHERE}.STATE_DICT_KEY_NAME: {path} has no {key!r}. "
                f"{nearest(key, map(str, content))}".rstrip()
                + f"\n  It holds: "
                f'{listing(map(str, content))}. ("" if the file is the state dict itself.)'
            )
        content = content[key]
    if not isinstance(content, Mapping):
        place = f" at {'.'.join(keys)}" if keys else ""
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {path} holds a {type(content).__name__}{place}: expected a "
            f"state dict, names and their tensors."
        )
    return content


def _named_tensors(
    content: Mapping[str, Any], weights: WeightsInitOptions, model_parts: Collection[str]
) -> dict[str, Tensor]:
    """`trunk.*`, `heads.*` and a custom model's other parts, whichever form the file has."""
    parts = _parts(content)
    if parts is not None:
        if "heads" in parts and (weights.REMOVE_PREFIX or weights.APPEND_PREFIX):
            LOG.info("%s: a checkpoint needs no prefixes; they are not applied.", WHERE)
        named = flat(parts)
    else:
        named = _plain(content.get("base_model", content), weights, model_parts)
    return {
        f"trunk.{name.removeprefix(_EXTRACTOR)}" if name.startswith(_EXTRACTOR) else name: tensor
        for name, tensor in named.items()
    }


def _parts(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`{"trunk": ..., "heads": ...}` of a checkpoint; None where the file is no such thing."""
    content = content.get("base_model", content)
    inner = content.get("model")
    content = inner if isinstance(inner, Mapping) and "trunk" in inner else content
    return content if isinstance(content.get("trunk"), Mapping) else None


def _in_our_names(trunk: Trunk, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    held = {name.removeprefix("trunk."): each for name, each in part_of(named, "trunk").items()}
    ours = in_trunks_names(trunk, held)
    tensors = ours.tensors | {name: held[name] for name in ours.outside}
    return {f"trunk.{name}": each for name, each in tensors.items()} | beside_trunk(named)


def _plain(
    content: Mapping[str, Any], weights: WeightsInitOptions, model_parts: Collection[str]
) -> dict[str, Tensor]:
    named, strays = {}, []
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(_no_state_dict(weights, name, value, content))
        full = weights.APPEND_PREFIX + name.removeprefix(weights.REMOVE_PREFIX)
        if full.partition(".")[0] in model_parts:
            named[full] = value
        # A file may also hold tensors without the prefix: a loss's centre, a queue.
        elif not weights.REMOVE_PREFIX or name.startswith(weights.REMOVE_PREFIX):
            strays.append(full)
    strays = [name for name in strays if not skipped(name, weights.SKIP_LAYERS)]
    if strays:
        raise CheckpointError(
            f"{WHERE}.APPEND_PREFIX: names in {weights.PARAMS_FILE} must begin with trunk. or "
            f"heads., after REMOVE_PREFIX {weights.REMOVE_PREFIX!r} and APPEND_PREFIX "
            f"{weights.APPEND_PREFIX!r}; these do not: {listing(strays, 8)}.\n"
            f"  For a file with the trunk alone set APPEND_PREFIX: 'trunk.'"
        )
    return named


def _renamed(content: Mapping[str, Any], weights: WeightsInitOptions) -> dict[str, Tensor]:
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(_no_state_dict(weights, name, value, content))
    return {
        weights.APPEND_PREFIX + name.removeprefix(weights.REMOVE_PREFIX): value
        for name, value in content.items()
    }


def _no_state_dict(
    weights: WeightsInitOptions, name: str, value: object, content: Mapping[str, Any]
) -> str:
    return (
        f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} holds no state dict there: "
        f"{name!r} is a {type(value).__name__}.\n  Found: {listing(map(str, content))}."
    )


def _classes_in(content: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, names)) for names in content.get("classes") or ())
