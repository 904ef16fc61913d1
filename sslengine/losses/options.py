"""`config.LOSS`: the name of the loss, and a section of options for each loss."""

from __future__ import annotations

from dataclasses import dataclass

from sslengine.config.sections import named, section
from sslengine.registry import LOSSES


@section("LOSS", components=LOSSES)
@dataclass
class LossOptions:
    # A registered loss, a loss class of torch.nn, or pkg.module:Name. Its options are in a
    # section of that name (the part after the colon). Empty if the model computes its losses
    # (loss_dict_train_step, model_train_step).
    name: str = named(LOSSES, "CrossEntropyLoss")
