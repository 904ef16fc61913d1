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


def multi_input_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """Inputs always nested under their names."""
    return single_input_sample(batch, inputs, targets, nested=True)


def single_input_sample(
    batch: Any, inputs: Sequence[str], targets: Sequence[str], nested: bool = False
) -> Sample:
    """One input unchanged; several nested under their names, as VISSL's standard step does."""
    if not isinstance(batch, dict):
        raise DataError(
            f"a train step needs a batch that is a dict of lists, the collator made "
            f"{type(batch).__name__}. See config.DATA.TRAIN.COLLATE_FUNCTION."
        )
    sample: Sample = {}
    for key, values in batch.items():
        if not isinstance(values, list) or len(values) != 1:
            raise DataError(_not_one_source(key, values))
        sample[key] = values[0]
    try:
        if nested or len(inputs) > 1:
            sample["input"] = {key: sample.pop(key) for key in inputs}
        else:
            sample["input"] = sample.pop(inputs[0])
        if len(targets) == 1:
            sample["target"] = sample.pop(targets[0])
        else:
            sample["target"] = {key: sample.pop(key) for key in targets}
    except KeyError as error:
        raise DataError(_missing(str(error.args[0]), batch, inputs)) from None
    return sample


def _missing(key: str, batch: Mapping[str, Any], inputs: Sequence[str]) -> str:
    named_by = "INPUT_KEY_NAMES" if key in inputs else "TARGET_KEY_NAMES"
    return (
        f"config.DATA.TRAIN.{named_by}: the batch has no key {key!r}, it has "
        f"{', '.join(map(str, batch))}. {nearest(key, batch)}"
    ).rstrip()


def _not_one_source(key: str, values: Any) -> str:
    if not isinstance(values, list):
        return (
            f"batch[{key!r}] must be a list over data sources, the collator made "
            f"{type(values).__name__}. Put it into a list."
        )
    return (
        f"batch[{key!r}] comes from {len(values)} data sources, and this train step takes one. "
        f"Give config.DATA.TRAIN.DATA_SOURCES one entry, or views of one image to the "
        f"collator to combine (simclr_collator)."
    )
