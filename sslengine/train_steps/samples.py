"""From the loader's batch to the sample that a step works on, with VISSL's contract.

A batch is a dict; each key holds a list over data sources. Steps take one source:

    one input key       sample["input"] = batch["data"][0]
    several             sample["input"] = {"images": ..., "patches": ...}
    one target key      sample["target"] = batch["label"][0]
    several             sample["target"] = {...}
    all other keys      carried along, each without its list: sample["data_idx"], ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sslengine.errors import DataError, nearest

Sample = dict[str, Any]


def single_input_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """One input as it is; several nested under their names, as VISSL's standard step does."""
    return _sample(batch, inputs, targets, nested=len(inputs) > 1)


def multi_input_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """Inputs always nested under their names."""
    return _sample(batch, inputs, targets, nested=True)


def _sample(batch: Any, inputs: Sequence[str], targets: Sequence[str], nested: bool) -> Sample:
    if not isinstance(batch, Mapping):
        raise DataError(
            f"a train step needs a batch that is a dict of lists, the collator made "
            f"{type(batch).__name__}. See config.DATA.TRAIN.COLLATE_FUNCTION."
        )
    sample: Sample = {
        key: _only_source(batch, key) for key in batch if key not in inputs and key not in targets
    }
    if nested:
        sample["input"] = {key: _only_source(batch, key, "INPUT_KEY_NAMES") for key in inputs}
    else:
        sample["input"] = _only_source(batch, inputs[0], "INPUT_KEY_NAMES")
    if len(targets) == 1:
        sample["target"] = _only_source(batch, targets[0], "TARGET_KEY_NAMES")
    else:
        sample["target"] = {key: _only_source(batch, key, "TARGET_KEY_NAMES") for key in targets}
    return sample


def _only_source(batch: Mapping[str, Any], key: str, named_by: str = "") -> Any:
    if key not in batch:
        raise DataError(
            f"config.DATA.TRAIN.{named_by}: the batch has no key {key!r}, it has "
            f"{', '.join(map(str, batch))}. {nearest(key, batch)}".rstrip()
        )
    value = batch[key]
    if not isinstance(value, list):
        raise DataError(
            f"batch[{key!r}] must be a list over data sources, the collator made "
            f"{type(value).__name__}. Put it into a list."
        )
    if len(value) != 1:
        raise DataError(
            f"batch[{key!r}] comes from {len(value)} data sources, and this train step takes one. "
            f"Give config.DATA.TRAIN.DATA_SOURCES one entry, or views of one image to the "
            f"collator to put together (simclr_collator)."
        )
    return value[0]
