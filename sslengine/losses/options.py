"""`config.LOSS`: the name of the method's loss, and the options of that one and of others."""

from __future__ import annotations

from dataclasses import dataclass

from sslengine.config.sections import named, section
from sslengine.registry import LOSSES


@section("LOSS", components=LOSSES)
@dataclass
class LossOptions:
    # A registered loss, a loss class of torch.nn, or pkg.module:Name. Its options stand in a
    # section of that name (the part after the colon). Empty where the model gives its losses
    # itself (loss_dict_train_step, model_train_step).
    name: str = named(LOSSES, "CrossEntropyLoss")
