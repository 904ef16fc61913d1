"""`config.MODEL`: the network, where its weights come from, how it is run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import above, at_least, choice
from sslengine.config.sections import named, section
from sslengine.errors import ConfigError
from sslengine.models.routing import Route, plan_routes
from sslengine.models.trunks.library_options import LibraryOptions, TimmOptions, TorchvisionOptions
from sslengine.models.trunks.options import (
    BeitOptions,
    ConvNextOptions,
    SwinTransformerOptions,
    VisionTransformerOptions,
    XcitOptions,
)
from sslengine.models.weights import AUTO
from sslengine.registry import HEADS, MODELS, TRUNKS

# The default of BASE_MODEL_NAME.
TRUNK_WITH_HEADS = "multi_input_output_model"


# Blocks in each of the four stages.
RESNET_STAGES: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


@dataclass
class ResNetOptions:
    """ResNet and ResNeXt."""

    # Layers: 18, 34, 50, 101, 152 or 200.
    DEPTH: int = choice(50, *RESNET_STAGES)
    # Blocks in each of the four stages, instead of those of DEPTH.
    BLOCKS: list[int] = at_least(1, [])
    # auto (basic for depths 18 and 34, bottleneck otherwise), basic or bottleneck.
    BLOCK: str = choice("auto", "basic", "bottleneck")
    # A factor on the channels of every layer; may be below 1.
    WIDTH_MULTIPLIER: float = 1.0
    # Channels of the four stages, instead of 64, 128, 256 and 512 times WIDTH_MULTIPLIER. The stem
    # has as many as the first stage; the output of a stage of bottlenecks has four times as many.
    CHANNELS: list[int] = at_least(1, [])
    # BatchNorm, LayerNorm or GroupNorm.
    NORM: str = choice("BatchNorm", "LayerNorm", "GroupNorm")
    # With NORM GroupNorm: groups of channels.
    GROUPNORM_GROUPS: int = at_least(1, 32)
    # ResNeXt: groups of a bottleneck's 3x3 convolution.
    GROUPS: int = at_least(1, 1)
    # ResNeXt: channels of each group in the first stage.
    WIDTH_PER_GROUP: int = 64
    # Initialise the last norm of every residual branch with zero.
    ZERO_INIT_RESIDUAL: bool = False
    # 1 keeps the last stage at the resolution of the one before.
    LAYER4_STRIDE: int = choice(2, 1)
    # imagenet: 7x7 stride 2 and max-pool; small (32 to 96 pixels): 3x3 stride 1, no max-pool.
    STEM: str = choice("imagenet", "small")

    def stages(self) -> tuple[int, ...]:
        return tuple(self.BLOCKS) or RESNET_STAGES[self.DEPTH]

    def is_basic(self) -> bool:
        return self.BLOCK == "basic" or (self.BLOCK == "auto" and self.DEPTH in (18, 34))

    def channels(self) -> tuple[int, ...]:
        """Return the channels of the four stages."""
        stem = round(64 * self.WIDTH_MULTIPLIER)
        return tuple(self.CHANNELS) or (stem, 2 * stem, 4 * stem, 8 * stem)

    def check(self) -> Iterator[str]:
        for key in ("BLOCKS", "CHANNELS"):
            if len(getattr(self, key)) not in (0, 4):
                yield f"{key}: expected four numbers, got {getattr(self, key)}."
        if self.is_basic() and (self.GROUPS, self.WIDTH_PER_GROUP) != (1, 64):
            yield "GROUPS: basic blocks have no groups; set BLOCK to bottleneck."
        widths = list(self.channels())
        inside = [int(w * self.WIDTH_PER_GROUP / 64) * self.GROUPS for w in widths]
        if self.CHANNELS and self.WIDTH_MULTIPLIER != 1:
            yield "WIDTH_MULTIPLIER: CHANNELS says the channels of every stage; set one of the two."
        elif min(*widths, *inside) < 1:
            key = "WIDTH_PER_GROUP" if self.CHANNELS else "WIDTH_MULTIPLIER"
            yield f"{key}: {getattr(self, key):g} leaves a layer without channels."
        elif self.NORM == "GroupNorm":
            layers = widths if self.is_basic() else widths + inside
            odd = [width for width in layers if width % self.GROUPNORM_GROUPS]
            if odd:
                yield (
                    f"GROUPNORM_GROUPS: {self.GROUPNORM_GROUPS} groups do not divide a layer "
                    f"of {odd[0]} channels."
                )


@dataclass
class TrunkOptions:
    # The network; its options are in one of the sections below.
    NAME: str = named(TRUNKS, "resnet")
    RESNETS: ResNetOptions = field(default_factory=ResNetOptions)
    VISION_TRANSFORMERS: VisionTransformerOptions = field(default_factory=VisionTransformerOptions)
    XCIT: XcitOptions = field(default_factory=XcitOptions)
    SWIN_TRANSFORMER: SwinTransformerOptions = field(default_factory=SwinTransformerOptions)
    CONVNEXT: ConvNextOptions = field(default_factory=ConvNextOptions)
    BEIT: BeitOptions = field(default_factory=BeitOptions)
    TIMM: TimmOptions = field(default_factory=TimmOptions)
    TORCHVISION: TorchvisionOptions = field(default_factory=TorchvisionOptions)

    def library(self) -> LibraryOptions | None:
        """Return the section TIMM or TORCHVISION if NAME is that library."""
        return {"timm": self.TIMM, "torchvision": self.TORCHVISION}.get(self.NAME)

    def section_of(self, kind: type | None) -> Any:
        """Return the section of an options class, here or in a plugin; None if there is none."""
        return next((each for each in vars(self).values() if type(each) is kind), None)

    def check(self) -> Iterator[str]:
        chosen = self.library()
        if chosen is not None and not chosen.model:
            yield f"{self.NAME.upper()}.model: expected the name of one of {self.NAME}'s networks."


@dataclass
class HeadOptions:
    # A list of [name, {arguments}]: a chain on one feature, or one head for each feature.
    # A list of such lists: each is a separate head, whose modules are a chain.
    PARAMS: list[Any] = named(HEADS, [], alone=lambda name: [name, {}])
    # Added to the variance in all batch norms of heads.
    BATCHNORM_EPS: float = 1e-5
    # The share of a new batch in the running statistics of all batch norms in heads.
    BATCHNORM_MOMENTUM: float = 0.1
    # A factor on the initial weights and biases of all linear layers in heads.
    PARAMS_MULTIPLIER: float = 1.0


@dataclass
class FeatureEvalOptions:
    """Evaluation of a trained trunk's features."""

    # The other keys of this section have an effect only if this is true.
    EVAL_MODE_ON: bool = False
    # Freeze the trunk; the heads are trained.
    FREEZE_TRUNK_ONLY: bool = False
    # Freeze the whole model.
    FREEZE_TRUNK_AND_HEAD: bool = False
    # The output is the trunk's features; the heads are not run.
    EXTRACT_TRUNK_FEATURES_ONLY: bool = False
    # Load the heads' weights from WEIGHTS_INIT too, not the trunk's alone.
    EVAL_TRUNK_AND_HEAD: bool = False
    # Heads with another shape in the file are an error; false: they are not loaded.
    ASSERT_HEAD_LAYER_SHAPE_INIT: bool = True
    # Flatten the pooled features to N x D.
    SHOULD_FLATTEN_FEATS: bool = True
    # [[feature, [pooling, [its arguments]]], ...]: the features to evaluate, one head for each.
    LINEAR_EVAL_FEAT_POOL_OPS_MAP: list[Any] = field(default_factory=list)

    def check(self) -> Iterator[str]:
        for key in (
            "FREEZE_TRUNK_ONLY",
            "FREEZE_TRUNK_AND_HEAD",
            "EXTRACT_TRUNK_FEATURES_ONLY",
            "EVAL_TRUNK_AND_HEAD",
            "LINEAR_EVAL_FEAT_POOL_OPS_MAP",
        ):
            if getattr(self, key) and not self.EVAL_MODE_ON:
                yield f"{key}: has an effect only with EVAL_MODE_ON: true."


@dataclass
class SyncBatchNormOptions:
    # Batch norms share their statistics over ranks.
    CONVERT_BN_TO_SYNC_BN: bool = False
    # Ranks that share statistics. -1: those of a node; 0: all ranks; N: N consecutive ranks.
    GROUP_SIZE: int = at_least(-1, -1)


@dataclass
class GradScalerOptions:
    """Arguments of torch's GradScaler."""

    # The first scale: the loss is multiplied by the scale before the backward pass.
    init_scale: float = above(0, 65536.0)
    # A factor on the scale after growth_interval steps without overflow.
    growth_factor: float = above(1, 2.0)
    # A factor on the scale after a step that overflowed; that step is skipped.
    backoff_factor: float = above(0, 0.5, below=1)
    # Steps without overflow after which the scale grows.
    growth_interval: int = at_least(1, 2000)


@dataclass
class AmpOptions:
    # Train in mixed precision.
    USE_AMP: bool = False
    # pytorch or apex: VISSL's word for float16, which torch computes.
    AMP_TYPE: str = choice("apex", "pytorch")
    # apex: opt_level O0 is float32; O1, O2 and O3 are float16.
    AMP_ARGS: dict[str, Any] = field(default_factory=lambda: {"opt_level": "O1"})
    # pytorch: float16 (with loss scaling) or bfloat16.
    AMP_DTYPE: str = choice("float16", "bfloat16")
    # The loss scaling of float16.
    GRAD_SCALER: GradScalerOptions = field(default_factory=GradScalerOptions)

    def check(self) -> Iterator[str]:
        if self.AMP_ARGS.get("opt_level", "O1") not in ("O0", "O1", "O2", "O3"):
            got = self.AMP_ARGS["opt_level"]
            yield f"AMP_ARGS.opt_level: expected O0, O1, O2 or O3 (letter O); got {got!r}."


@dataclass
class WeightsInitOptions:
    # Weights to start from: a checkpoint of sslengine, VISSL or another library (docs/weights.md),
    # or the folder of a run or a model. Not read when there is a checkpoint to resume.
    PARAMS_FILE: str = ""
    # Where in the file the state dict is: a key, a list of keys one inside the other, or "". Other
    # libraries' checkpoints are recognised if neither this nor a prefix is set.
    STATE_DICT_KEY_NAME: Any = "classy_state_dict"
    # If the checkpoint's method has a teacher (a momentum encoder): student, teacher, or auto: the
    # one that the method chooses (DINO: teacher; BYOL and MoCo: student). Of several students also
    # the name of one.
    NETWORK: str = AUTO
    # Adapt weights for RGB images to a trunk that takes another number of channels, as timm does:
    # one channel gets the sum of the three filters, more get these in turn, scaled by 3 / channels.
    ADAPT_INPUT_CHANNELS: bool = False
    # Tensors whose name contains one of these are not loaded, and may be missing in the file.
    SKIP_LAYERS: list[str] = field(default_factory=lambda: ["num_batches_tracked"])
    # Load any pickle, which may run any code: only for files that you trust (--trust-pickle).
    TRUST_PICKLE: bool = False
    # Remove this prefix from the names of a plain state dict.
    REMOVE_PREFIX: str = ""
    # Then put this prefix before them.
    APPEND_PREFIX: str = ""

    def __post_init__(self) -> None:
        self.PARAMS_FILE = os.path.expanduser(self.PARAMS_FILE)

    def says_where(self) -> bool:
        """Tell whether keys say which tensors of the file are the trunk's."""
        other = self.STATE_DICT_KEY_NAME != WeightsInitOptions.STATE_DICT_KEY_NAME
        return other or bool(self.REMOVE_PREFIX or self.APPEND_PREFIX)

    def key_path(self) -> list[str]:
        key = self.STATE_DICT_KEY_NAME
        return [key] if isinstance(key, str) and key else list(key or ())

    def check(self) -> Iterator[str]:
        key = self.STATE_DICT_KEY_NAME
        if key is not None and not (
            isinstance(key, str)
            or (isinstance(key, list) and all(isinstance(each, str) for each in key))
        ):
            yield f"STATE_DICT_KEY_NAME: expected a key or a list of keys, got {key!r}."


@dataclass
class ActivationCheckpointingOptions:
    # Of each block of the trunk keep the input alone, and recompute the rest in the backward pass.
    USE_ACTIVATION_CHECKPOINTING: bool = False


@dataclass
class GradClipOptions:
    # Clip the norm of the gradients.
    USE_GRAD_CLIP: bool = False
    # Which norm: 2, 1, inf.
    NORM_TYPE: float = field(default=2.0, metadata={"infinite": True})
    # The largest norm.
    MAX_NORM: float = above(0, 1.0)
    # Clip each parameter's gradient separately, as in DINO, not the norm of all gradients.
    PER_PARAMETER: bool = False
    # Clip the trunk's gradients, those of each head and those of the method separately, as in
    # DINOv2.
    PER_MODULE: bool = False

    def check(self) -> Iterator[str]:
        if self.PER_PARAMETER and self.NORM_TYPE != 2.0:
            yield f"PER_PARAMETER: requires NORM_TYPE 2, got {self.NORM_TYPE:g}."
        if self.PER_PARAMETER and self.PER_MODULE:
            yield "PER_MODULE: cannot be combined with PER_PARAMETER; choose one."


@dataclass
class FsdpOptions:
    # Shard the model over ranks: sets TRAINER.TASK_NAME to self_supervision_fsdp_task, and the keys
    # that this requires.
    AUTO_SETUP_FSDP: bool = False
    # Blocks with fewer parameters are gathered with the rest of the trunk, not separately.
    AUTO_WRAP_THRESHOLD: int = at_least(0, 0)
    # With AUTO_SETUP_FSDP and USE_AMP. O1: weights in float32; O2: in AMP_DTYPE.
    AMP_TYPE: str = choice("01", "O1", "O2")
    # Cast the weights and inputs of a unit to compute_dtype while it runs.
    mixed_precision: bool = True
    # Sum gradients over ranks in float32 even if compute_dtype is another.
    fp32_reduce_scatter: bool = False
    # float32, bfloat16 or float16.
    compute_dtype: str = choice("float32", "bfloat16", "float16")

    def compute(self) -> str:
        """Return the dtype of computation; float32 without mixed precision."""
        return self.compute_dtype if self.mixed_precision else "float32"


@dataclass
class LoraOptions:
    # The rank of what is added to a layer's weight; 0: all of the trunk is trained.
    RANK: int = at_least(0, 0)
    # What is added is multiplied by ALPHA / RANK.
    ALPHA: float = above(0, 16.0)
    # The linear layers of the trunk that are adapted: those whose names end in one of these.
    LAYERS: list[str] = field(default_factory=lambda: ["qkv", "proj"])


@dataclass
class PreserveOptions:
    # A factor on the distance of the trunk's features from those that it had at the start, which is
    # added to the loss; 0: nothing is added.
    WEIGHT: float = at_least(0, 0.0)


@dataclass
class CompileOptions:
    # torch.compile the trunk and the heads, or a custom model's submodules; a sharded model is
    # compiled block by block.
    USE_COMPILE: bool = False
    # inductor; eager and aot_eager help to locate a problem.
    BACKEND: str = "inductor"
    # Mode of inductor: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs.
    MODE: str = choice("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

    def check(self) -> Iterator[str]:
        if self.MODE != "default" and self.BACKEND != "inductor":
            yield f"MODE: only inductor has modes, and BACKEND is {self.BACKEND!r}."


@section("MODEL", components=MODELS)
@dataclass
class ModelOptions:
    # A trunk with heads; or a custom model, registered or pkg.module:Name. Its options are in a
    # section of that name (the part after the colon).
    BASE_MODEL_NAME: str = named(MODELS, TRUNK_WITH_HEADS)
    TRUNK: TrunkOptions = field(default_factory=TrunkOptions)
    HEAD: HeadOptions = field(default_factory=HeadOptions)
    # rgb or bgr: the order in which the trunk gets the channels.
    INPUT_TYPE: str = choice("rgb", "bgr")
    # Channels of the trunk's input; auto: the channels of DATA's images.
    INPUT_CHANNELS: int | str = at_least(1, "auto", also="auto")
    # [[input key, [features]], ...] or
    # [[input key, {feat_names, head_index, additional_keys}], ...]: which head reads which input.
    # head_index can be a list with a head for each feature. Passing `mask` adds a mask token.
    MULTI_INPUT_HEAD_MAPPING: list[Any] = field(default_factory=list)
    # Pass every crop through the trunk separately, instead of crops of one size in one batch. Saves
    # memory.
    SINGLE_PASS_EVERY_CROP: bool = False
    # Pass each view through trunk and heads as a separate batch, so batch norms use the statistics
    # of one view, as in the published SimSiam, BYOL, Barlow Twins and VICReg.
    VIEWS_APART: bool = False
    # Store images and filters as N x H x W x C: faster for convolutions on most devices. auto: on a
    # GPU, unless the model is sharded.
    CHANNELS_LAST: bool | str = choice(False, True, "auto")
    # Parameters that are not trained, by their full names.
    NON_TRAINABLE_PARAMS: list[str] = field(default_factory=list)
    # [[parameter, for how many first updates it is not trained], ...]; trunk.* is the trunk.
    TEMP_FROZEN_PARAMS_ITER_MAP: list[Any] = field(default_factory=list)
    # The same for first epochs.
    TEMP_FROZEN_PARAMS_EPOCH_MAP: list[Any] = field(default_factory=list)
    # What stops these: gradient: they have none; rate: they have one, which counts in GRAD_CLIP and
    # in the optimizer's moments, and a learning rate of 0, as DINOv2's last layers.
    TEMP_FROZEN_PARAMS_BY: str = choice("gradient", "rate")
    FEATURE_EVAL_SETTINGS: FeatureEvalOptions = field(default_factory=FeatureEvalOptions)
    WEIGHTS_INIT: WeightsInitOptions = field(default_factory=WeightsInitOptions)
    # Train small matrices next to the trunk's layers in place of the trunk: LoRA.
    LORA: LoraOptions = field(default_factory=LoraOptions)
    # Keep the features near those of the weights that training starts from.
    PRESERVE: PreserveOptions = field(default_factory=PreserveOptions)
    SYNC_BN_CONFIG: SyncBatchNormOptions = field(default_factory=SyncBatchNormOptions)
    AMP_PARAMS: AmpOptions = field(default_factory=AmpOptions)
    ACTIVATION_CHECKPOINTING: ActivationCheckpointingOptions = field(
        default_factory=ActivationCheckpointingOptions
    )
    GRAD_CLIP: GradClipOptions = field(default_factory=GradClipOptions)
    FSDP_CONFIG: FsdpOptions = field(default_factory=FsdpOptions)
    COMPILE: CompileOptions = field(default_factory=CompileOptions)

    def check(self) -> Iterator[str]:
        if not self.BASE_MODEL_NAME:
            yield "BASE_MODEL_NAME: expected the name of a model."
        if self.INPUT_TYPE == "bgr" and self.INPUT_CHANNELS not in ("auto", 3):
            channels = self.INPUT_CHANNELS
            yield f"INPUT_TYPE: bgr requires images of three channels, not of {channels}."
        try:
            self.routes(where="")
        except ConfigError as error:
            yield str(error)

    def in_chans(self) -> int:
        """Return INPUT_CHANNELS; 3 if `auto` was not resolved."""
        return 3 if isinstance(self.INPUT_CHANNELS, str) else self.INPUT_CHANNELS

    def starts_from_weights(self) -> bool:
        """Whether training starts from weights of an earlier training."""
        return bool(self.WEIGHTS_INIT.PARAMS_FILE) or self.starts_from_library()

    def starts_from_library(self) -> bool:
        """Whether training starts from timm's or torchvision's pretrained weights."""
        library = self.TRUNK.library() if self.BASE_MODEL_NAME == TRUNK_WITH_HEADS else None
        return library is not None and library.pretrained and not self.WEIGHTS_INIT.PARAMS_FILE

    def routes(self, where: str = "config.MODEL.") -> list[Route]:
        """Return the route of each input; raise ConfigError if keys contradict each other."""
        settings = self.FEATURE_EVAL_SETTINGS
        return plan_routes(
            heads=self.HEAD.PARAMS,
            pooled=settings.LINEAR_EVAL_FEAT_POOL_OPS_MAP,
            mapping=self.MULTI_INPUT_HEAD_MAPPING,
            trunk_only=settings.EXTRACT_TRUNK_FEATURES_ONLY,
            where=where,
        )
