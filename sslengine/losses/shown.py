"""What losses on a part of an image's patches need: a collator that chooses it, and a trunk that
takes it, with the same patch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError

TRUNKS = "vision_transformer, or timm with one of its vision transformers"


@dataclass(frozen=True)
class ShownPatches:
    loss: str
    collator: str
    patch_size: int  # the collator's default

    def expect_collator(self, facts: RunFacts) -> None:
        """Raise ConfigError if the config has another one, or another patch size."""
        if facts.collator != self.collator:
            raise ConfigError(
                f"config.DATA.TRAIN.COLLATE_FUNCTION: {self.loss} needs {self.collator}, got "
                f"{facts.collator}."
            )
        self.expect_size(facts)

    def expect_size(self, facts: RunFacts) -> None:
        """Raise ConfigError if vision_transformer's patches are not those of the collator."""
        if facts.patch_size:
            self._expect_size(facts, facts.patch_size)

    def trunk_of(self, model: nn.Module, facts: RunFacts) -> Any:
        """The model's trunk, which takes `shown` and has a `patch_size`."""
        trunk = getattr(model, "trunk", None)
        if "shown" not in getattr(trunk, "extra_inputs", ()):
            raise ConfigError(
                f"config.MODEL.TRUNK.NAME: {self.loss} needs {TRUNKS}; got {type(trunk).__name__}, "
                f"which cannot leave patches out."
            )
        self.expect_size_of(model, facts)
        return trunk

    def expect_size_of(self, model: nn.Module, facts: RunFacts) -> None:
        """Raise ConfigError if the trunk takes `shown`, and its patches have another size."""
        trunk = getattr(model, "trunk", None)
        if facts.collator and "shown" in getattr(trunk, "extra_inputs", ()):
            self._expect_size(facts, getattr(trunk, "patch_size", 0))

    def _expect_size(self, facts: RunFacts, size: int) -> None:
        given = facts.collator_params.get("patch_size", self.patch_size)
        if given != size:
            raise ConfigError(
                f"config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size: it is {given}, with a "
                f"trunk of {size}; {self.loss} needs the same patch size in both."
            )
