"""How many heads attention has, which no shape shows: config.json of a model's folder is asked."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from sslengine.errors import DoesNotFitError


def expect_heads(trunk: nn.Module, file: Path, where: str) -> None:
    """Raise if the folder of a model of transformers says another number than the trunk has."""
    said, own = _said(file), _own(trunk)
    if said and own and said != own:
        raise DoesNotFitError(
            f"{where}: {file / 'config.json'} says num_attention_heads {said}, and the trunk has "
            f"{own}. All shapes are the same, and its features would be others. Set the number in "
            f"config.MODEL.TRUNK, of a network of timm TIMM.arguments.num_heads={said}."
        )


def _own(trunk: nn.Module) -> int:
    """0: it has none, or several numbers."""
    found = {each.num_heads for each in trunk.modules()
             if isinstance(getattr(each, "num_heads", None), int)}  # fmt: skip
    return int(found.pop()) if len(found) == 1 else 0  # type: ignore[arg-type]


def _said(file: Path) -> int:
    config: Any = None
    with suppress(OSError, ValueError):
        config = json.loads((file / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        return 0
    of_image = config.get("vision_config")
    found = (of_image if isinstance(of_image, dict) else config).get("num_attention_heads")
    return found if isinstance(found, int) else 0
