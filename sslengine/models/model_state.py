"""A model's weights into a checkpoint, and out of it.

In it they are `{"model": {"trunk": ..., "heads": ...}, "meta": {"trunk": {}, "heads": []}}`, as in
VISSL; a custom model has its children's names there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sslengine.errors import CheckpointError
from sslengine.models.model import Model
from sslengine.models.named_tensors import copy_tensors, flat, mismatches
from sslengine.models.vissl_names import to_vissl


def model_state(model: nn.Module) -> dict[str, Any]:
    """For a checkpoint. The tensors are the model's own, not copies."""
    parts: dict[str, dict[str, Tensor]] = {"trunk": {}, "heads": {}}
    for full, tensor in model.state_dict().items():
        part, _, name = full.partition(".")
        parts.setdefault(part, {})[name] = tensor
    return {"model": parts, "meta": {"trunk": {}, "heads": []}}


def vissl_state(model: Model) -> dict[str, Any]:
    """A file that VISSL reads as a checkpoint, and so does `init_from_file`."""
    parts = {"trunk": to_vissl(model.trunk), "heads": model.heads.state_dict()}
    return {
        "classy_state_dict": {
            "base_model": {"model": parts, "meta": {"trunk": {}, "heads": []}},
        }
    }


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """The reverse of `model_state`; every name must be there with its shape."""
    given, expected = flat(state.get("model") or {}), tensors_of(model)
    problems = mismatches(expected, given)
    if problems:
        raise CheckpointError(
            "the checkpoint was made by another model:\n  " + "\n  ".join(problems)
        )
    copy_tensors(expected, given, expected)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return flat(model_state(model)["model"])
