"""SimSiam: predict the other view's projection, with a stop-gradient on the projection.

Chen and He, Exploring Simple Siamese Representation Learning, 2021, equations 2 to 4:

    loss = D(p_1, stopgrad(z_2)) / 2 + D(p_2, stopgrad(z_1)) / 2,   D = -mean cosine

z: projection, p: prediction. The loss is between -1 and 1. It is -1 if all predictions are
right; without the stop-gradient a constant output would reach that too.

Batches come from `simclr_collator`, the model ends in `predictor_head`. In the authors' code
each view passes the model separately: `MODEL.VIEWS_APART`. Without it a batch norm's batch
holds both.

In the publication the learning rate decays for all parameters except the predictor's:

    OPTIMIZER:
      param_group_constructor: predictor_alone_is_head
      head_optimizer_params: {use_different_lr: True}
      param_schedulers:
        lr_head: {name: constant, value: ...}
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sslengine.losses.views import cross_view_cosine, projection_and_prediction
from sslengine.methods.base import Method
from sslengine.models.heads.mlp import PredictorHead
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import Group, default
from sslengine.registry import register_loss, register_param_groups

NAME = "simsiam_loss"


@register_loss(NAME, views=2)
class SimSiamLoss(Method):
    """The paper's loss has no options."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, output: Any, target: Any = None) -> Tensor:
        """output: [projection, prediction] of both views, (2B, D) each."""
        projection, prediction = projection_and_prediction(output, NAME)
        return -cross_view_cosine(prediction, projection.detach())


@register_param_groups("predictor_alone_is_head")
def predictor_alone_is_head(model: nn.Module, options: OptimizerOptions) -> list[Group]:
    """The default groups, with the heads' schedules for the predictors only."""
    heads = [module for module in model.modules() if isinstance(module, PredictorHead)]
    apart = {id(each) for head in heads for each in head.predictor.parameters()}
    groups: list[Group] = []
    for group in default(model, options):
        inside = [each for each in group["params"] if id(each) in apart]
        others = [each for each in group["params"] if id(each) not in apart]
        groups.append({**group, "params": others, "is_head": False})
        groups.append(
            {**group, "params": inside, "is_head": True, "name": f"predictor, {group['name']}"}
        )
    return groups
