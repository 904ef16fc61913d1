"""`config.OPTIMIZER`: the optimizer, its parameter groups, its schedules, the run's length."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.components import argument_problems
from sslengine.config.ranges import above, at_least, range_problems
from sslengine.config.sections import named, section
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.optim.schedules import SchedulerOptions, build_schedule, schedule
from sslengine.registry import OPTIMIZERS, PARAM_GROUPS

# Fields that are passed to an optimizer if its signature has them. VISSL's YAML sets those of the
# first tuple for any optimizer; null in those of the second means the optimizer's default.
_ALWAYS_SET = ("weight_decay", "momentum", "nesterov", "betas")
_OWN_DEFAULT = ("dampening", "eps", "amsgrad", "alpha", "centered", "eta", "exclude_bias_and_norm")

# All phases of a run are listed in memory before it starts.
MOST_EPOCHS = 1_000_000
# The length in epochs if it depends on the dataset: longer than any milestone.
_LENGTH_UNKNOWN = 1e9


@dataclass
class LarcOptions:
    # true: LARC's rate is an upper limit of the learning rate; false: a factor on it.
    clip: bool = False
    # Added to the gradient's norm, the divisor.
    eps: float = 1e-8
    # LARC's rate is this times the ratio of the norms of parameter and gradient.
    trust_coefficient: float = 0.001


@dataclass
class HeadOptimizerParams:
    """Learning rate and weight decay of heads, if they differ from those of the trunk."""

    # Use param_schedulers.lr_head for heads.
    use_different_lr: bool = False
    # Use the weight decay below for heads, or that of param_schedulers.weight_decay_head.
    use_different_wd: bool = False
    # The weight decay of heads, with use_different_wd.
    weight_decay: float = at_least(0, 1e-4)


@dataclass
class LinearHeadOptions:
    """One entry of `linear_eval_heads`; the entries are for heads.0, heads.1, ... in order."""

    # A factor on the learning rate.
    lr: float
    # null: the weight decay of all heads.
    weight_decay: float | None = None
    # null: OPTIMIZER.regularize_bn.
    regularize_bn: bool | None = None


@dataclass
class MultiplierOptions:
    """One entry of `multipliers`."""

    # A pattern of parameter names: trunk.patch_embed.*, *norm*, loss.*
    match: str
    # A factor on the learning rate.
    lr: float = at_least(0, 1.0)
    # A factor on the weight decay.
    weight_decay: float = at_least(0, 1.0)


@dataclass
class LayerWiseLrDecay:
    # The learning rate of a layer, divided by that of the next layer (closer to the heads).
    decay: float = above(0, 0.9, at_most=1)
    # Parameters whose names contain one of these have the rate of the trunk's last layer: for
    # tokens that begin fresh in a trained trunk.
    as_last: list[str] = field(default_factory=list)


def _vissl_lr() -> SchedulerOptions:
    """Make VISSL's schedule, which is for SGD; of other schedules see config/vissl.py."""
    values = {"values": [0.1, 0.01, 0.001], "milestones": [30, 60]}
    return schedule("multistep", update_interval="epoch", **values)


@dataclass
class ParamSchedulers:
    """Schedules by hyper-parameter. null: the value is constant."""

    lr: SchedulerOptions = field(default_factory=_vissl_lr)
    # The learning rate of heads, with head_optimizer_params.use_different_lr.
    lr_head: SchedulerOptions = field(default_factory=_vissl_lr)
    # null: OPTIMIZER.weight_decay is constant.
    weight_decay: SchedulerOptions | None = None
    # The weight decay of heads, with head_optimizer_params.use_different_wd.
    weight_decay_head: SchedulerOptions | None = None
    # Momentum; for Adam, the first beta.
    momentum: SchedulerOptions | None = None


@dataclass
class OptimizerSettings:
    """An optimizer, its parameter groups and its schedules."""

    # sgd, adamw, lars, ...; torch.optim:NAME; or one of timm: muon, lion, timm_adamw, ...
    name: str = named(OPTIMIZERS, "sgd")
    # Weight decay of all regularized parameters.
    weight_decay: float = at_least(0, 1e-4)
    # Momentum of optimizers that have one.
    momentum: float = at_least(0, 0.9, below=1)
    # Use Nesterov momentum.
    nesterov: bool = False
    # Adam and similar optimizers: the decay rates of the moments. Of one of timm's the default are
    # its own.
    betas: list[float] = at_least(0, [0.9, 0.999], below=1)
    # SGD: dampening of the momentum. null, in this and the next keys: the optimizer's default.
    dampening: float | None = None
    # Adam and similar optimizers: added to the denominator.
    eps: float | None = None
    # Adam: the variant that keeps the largest second moment.
    amsgrad: bool | None = None
    # RMSprop: the smoothing constant.
    alpha: float | None = None
    # RMSprop: divide by the variance.
    centered: bool | None = None
    # LARS: the trust coefficient.
    eta: float | None = None
    # LARS: update biases and norm layers by plain SGD.
    exclude_bias_and_norm: bool | None = None
    # Other arguments of the optimizer.
    args: dict[str, Any] = field(default_factory=dict)

    # LARC: a separate rate for each layer, with any optimizer.
    use_larc: bool = False
    larc_config: LarcOptions = field(default_factory=LarcOptions)
    # Another name for TRAINER.TASK_NAME: self_supervision_fsdp_task, which shards more than ZeRO.
    use_zero: bool = False

    # The function that splits parameters into groups.
    param_group_constructor: str = named(PARAM_GROUPS, "default")
    # Apply weight decay to norm layers.
    regularize_bn: bool = False
    # Apply weight decay to biases.
    regularize_bias: bool = True
    # No weight decay on parameters whose name contains one of these.
    non_regularized_parameters: list[str] = field(default_factory=list)
    # With param_group_constructor: default only: one group for all parameters, with weight decay.
    construct_single_param_group_only: bool = False
    head_optimizer_params: HeadOptimizerParams = field(default_factory=HeadOptimizerParams)
    layer_wise_lr_decay: LayerWiseLrDecay = field(default_factory=LayerWiseLrDecay)
    # [{match: trunk.patch_embed.*, lr: 0.2}, {match: "*norm*", weight_decay: 0.1}]: factors on
    # learning rate and weight decay of the parameters whose names match a pattern. Those of
    # several entries, of param_group_constructor and of the method are multiplied.
    multipliers: list[dict[str, Any]] = field(default_factory=list)
    # With param_group_constructor: linear_eval_heads: {lr, weight_decay, regularize_bn} of each
    # head.
    linear_eval_heads: list[dict[str, Any]] = field(default_factory=list)

    param_schedulers: ParamSchedulers = field(default_factory=ParamSchedulers)

    def arguments(self, optimizer_class: Any) -> dict[str, Any]:
        """Return the hyper-parameters that the optimizer's signature has, and `args`."""
        known = inspect.signature(optimizer_class).parameters
        offered = {key: getattr(self, key) for key in (*_ALWAYS_SET, *_OWN_DEFAULT) if key in known}
        if "betas" in offered:
            betas = tuple(offered.pop("betas"))
            if betas != (0.9, 0.999) or not getattr(optimizer_class, "has_own_betas", False):
                offered["betas"] = betas
        chosen = {key: value for key, value in offered.items() if value is not None}
        return {**chosen, **self.args}

    def schedulers(self) -> dict[str, SchedulerOptions]:
        """Return the schedules in use. Without schedules for heads, heads use the trunk's."""
        given = vars(self.param_schedulers)
        chosen = {key: each for key, each in given.items() if each is not None}
        if not self.head_optimizer_params.use_different_lr:
            chosen["lr_head"] = chosen["lr"]
        if not self.head_optimizer_params.use_different_wd and "weight_decay" in chosen:
            chosen.setdefault("weight_decay_head", chosen["weight_decay"])
        return chosen

    def linear_heads(self) -> list[LinearHeadOptions]:
        return [LinearHeadOptions(**each) for each in self.linear_eval_heads]

    def multiplier_options(self) -> list[MultiplierOptions]:
        return [MultiplierOptions(**each) for each in self.multipliers]

    def check(self) -> Iterator[str]:
        if len(self.betas) != 2:
            yield f"betas: expected two numbers, got {self.betas}."
        if self.nesterov and (self.momentum == 0 or self.dampening):
            yield "nesterov: requires a momentum above 0 and no dampening."
        yield from self._schedule_problems()
        yield from self._group_problems()

    def _length(self) -> float:
        """Return the run's length in epochs, against which schedules are checked."""
        return _LENGTH_UNKNOWN

    def _schedule_problems(self) -> Iterator[str]:
        length = self._length()
        used = self.schedulers()
        for key, options in vars(self.param_schedulers).items():
            path = f"param_schedulers.{key}"
            if options is None or options is not used[key]:
                continue
            try:
                build_schedule(options, length)
            except ConfigError as error:
                yield f"{path}.{error}"
            if options.auto_lr_scaling.auto_scale and key not in ("lr", "lr_head"):
                yield f"{path}.auto_lr_scaling: only learning rates are scaled with the batch size."

    def _group_problems(self) -> Iterator[str]:
        constructor = self.param_group_constructor
        for key, wanted in (
            ("construct_single_param_group_only", "default"),
            ("linear_eval_heads", "linear_eval_heads"),
        ):
            if getattr(self, key) and constructor != wanted:
                yield f"{key}: requires param_group_constructor: {wanted}, got {constructor}."
        if constructor == "linear_eval_heads" and not self.linear_eval_heads:
            yield "linear_eval_heads: expected one entry per head, such as [{lr: 1.0}, {lr: 10.0}]."
        for index, each in enumerate(self.linear_eval_heads):
            yield from argument_problems(LinearHeadOptions, each, f"linear_eval_heads.{index}")
        for index, each in enumerate(self.multipliers):
            path = f"multipliers.{index}"
            wrong = argument_problems(MultiplierOptions, each, path)
            found = () if wrong else range_problems(MultiplierOptions(**each))
            yield from (*wrong, *(f"{path}.{text}" for text in found))

    def check_chosen(self) -> Iterator[str]:
        try:
            optimizer_class = OPTIMIZERS.get(self.name)
        except UnknownNameError:
            return  # reported by check.py
        known = inspect.signature(optimizer_class).parameters
        if self.use_larc and self.name == "lars":
            yield "use_larc: LARS has layer-wise rates already; use one of the two."
        if self.param_schedulers.momentum is not None and not {"momentum", "betas"} & {*known}:
            yield f"param_schedulers.momentum: {self.name} has neither momentum nor betas."
        for key in _OWN_DEFAULT:
            if getattr(self, key) is not None and key not in known:
                yield f"{key}: {self.name} takes no such argument."
        for key in self.args:
            if key in vars(self):
                yield f"args.{key}: set OPTIMIZER.{key} instead."
        # The first argument of an optimizer is the parameters, by any name.
        engine_arguments = (*list(known)[:1], "lr")
        arguments = self.arguments(optimizer_class)
        yield from argument_problems(optimizer_class, arguments, "args", engine_arguments)


@section("OPTIMIZER")
@dataclass
class OptimizerOptions(OptimizerSettings):
    # The length of the run in epochs.
    num_epochs: int | None = at_least(1, 90, at_most=MOST_EPOCHS)
    # The length of the run in iterations, instead of num_epochs.
    num_iterations: int | None = at_least(1, None)
    # Number of batches whose gradients are accumulated for one optimizer step.
    accumulate: int = at_least(1, 1)

    def _length(self) -> float:
        known = self.num_iterations is None and self.num_epochs is not None
        return float(self.num_epochs or 0) if known else _LENGTH_UNKNOWN

    def check(self) -> Iterator[str]:
        if self.num_epochs is None and self.num_iterations is None:
            yield "num_epochs: the run has no length. Set num_epochs or num_iterations."
        yield from super().check()
