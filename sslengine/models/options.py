"""`config.MODEL`: the network, where its weights come from, how it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.sections import iterations, named, one_of, section
from sslengine.errors import ConfigError
from sslengine.models.networks import CHOICES
from sslengine.models.routing import Route, plan_routes
from sslengine.models.trunks.library_options import LibraryOptions, TimmOptions, TorchvisionOptions
from sslengine.models.trunks.options import (
    BeitOptions,
    ConvitOptions,
    ConvNextOptions,
    EfficientNetOptions,
    MobileNetOptions,
    RegNetOptions,
    SwinTransformerOptions,
    XcitOptions,
    cut_unevenly,
    no_scale,
)
from sslengine.registry import HEADS, MODELS, TRUNKS

# What config.MODEL is unless BASE_MODEL_NAME says otherwise.
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
    DEPTH: int = 50
    # Blocks in each of the four stages, in place of those of DEPTH.
    BLOCKS: list[int] = field(default_factory=list)
    # auto (basic for depths 18 and 34, bottleneck otherwise), basic or bottleneck.
    BLOCK: str = "auto"
    # On every channel count; may be below 1.
    WIDTH_MULTIPLIER: float = 1.0
    # BatchNorm, LayerNorm or GroupNorm.
    NORM: str = "BatchNorm"
    # Of NORM GroupNorm: groups of channels.
    GROUPNORM_GROUPS: int = 32
    # ResNeXt: groups of a bottleneck's 3x3 convolution, and their width.
    GROUPS: int = 1
    # ResNeXt: channels of each group, at 64 of the first stage.
    WIDTH_PER_GROUP: int = 64
    # Start every residual branch at zero.
    ZERO_INIT_RESIDUAL: bool = False
    # 1 keeps the last stage at the resolution of the one before.
    LAYER4_STRIDE: int = 2
    # imagenet: 7x7 stride 2 and max-pool; small (32 to 96 pixels): 3x3 stride 1, no max-pool.
    STEM: str = "imagenet"

    def stages(self) -> tuple[int, ...]:
        return tuple(self.BLOCKS) or RESNET_STAGES[self.DEPTH]

    def is_basic(self) -> bool:
        return self.BLOCK == "basic" or (self.BLOCK == "auto" and self.DEPTH in (18, 34))

    def channels(self) -> int:
        """Of the stem; the stages have 1, 2, 4 and 8 times as many."""
        return round(64 * self.WIDTH_MULTIPLIER)

    def check(self) -> Iterator[str]:
        yield from one_of(self, "DEPTH", *RESNET_STAGES)
        yield from one_of(self, "BLOCK", "auto", "basic", "bottleneck")
        yield from one_of(self, "NORM", "BatchNorm", "LayerNorm", "GroupNorm")
        yield from one_of(self, "LAYER4_STRIDE", 1, 2)
        yield from one_of(self, "STEM", "imagenet", "small")
        if self.BLOCKS and (len(self.BLOCKS) != 4 or min(self.BLOCKS) < 1):
            yield f"BLOCKS: expected four numbers, 1 or more each; got {self.BLOCKS}."
        if self.is_basic() and (self.GROUPS, self.WIDTH_PER_GROUP) != (1, 64):
            yield "GROUPS: basic blocks have no groups; BLOCK: bottleneck has."
        yield from self._width_problems()

    def _width_problems(self) -> Iterator[str]:
        inside = int(self.channels() * self.WIDTH_PER_GROUP / 64)
        if self.channels() < 1 or inside < 1 or self.GROUPS < 1:
            yield f"WIDTH_MULTIPLIER: {self.WIDTH_MULTIPLIER:g} leaves a layer without channels."
        elif self.GROUPNORM_GROUPS < 1:
            yield f"GROUPNORM_GROUPS: expected 1 or more, got {self.GROUPNORM_GROUPS}."
        elif self.NORM == "GroupNorm":
            widths = [self.channels() * 2**stage for stage in range(4)]
            if not self.is_basic():
                widths += [int(w * self.WIDTH_PER_GROUP / 64) * self.GROUPS for w in widths]
            odd = [width for width in widths if width % self.GROUPNORM_GROUPS]
            if odd:
                yield (
                    f"GROUPNORM_GROUPS: {self.GROUPNORM_GROUPS} groups do not divide a layer "
                    f"of {odd[0]} channels."
                )


@dataclass
class VisionTransformerOptions:
    # The side for which position embeddings are made; other sizes interpolate them.
    IMAGE_SIZE: int = 224
    # The side of a patch, in pixels.
    PATCH_SIZE: int = 16
    # Blocks.
    NUM_LAYERS: int = 12
    # Attention heads of each block.
    NUM_HEADS: int = 12
    # Width of a token.
    HIDDEN_DIM: int = 768
    # Width inside each block's MLP.
    MLP_DIM: int = 3072
    # Dropout on embeddings, and behind attention and MLPs.
    DROPOUT_RATE: float = 0.0
    # Dropout on the weights of attention.
    ATTENTION_DROPOUT_RATE: float = 0.0
    # false: patches are averaged.
    USE_CLASS_TOKEN: bool = True
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = 0.0
    # A bias on queries, keys and values.
    QKV_BIAS: bool = False
    # false: 1 / sqrt(width of a head). A number costs the fused attention kernel.
    QK_SCALE: bool | float | None = False
    # Recompute each block in the backward pass instead of keeping what is inside it.
    CHECKPOINT_BLOCK: bool = False

    def check(self) -> Iterator[str]:
        yield from no_scale(self)
        sizes = ("IMAGE_SIZE", "PATCH_SIZE", "NUM_LAYERS", "NUM_HEADS", "HIDDEN_DIM", "MLP_DIM")
        yield from cut_unevenly(self, *sizes)


@dataclass
class TrunkOptions:
    # The network; its options stand in a section beside this key.
    NAME: str = named(TRUNKS, "resnet")
    RESNETS: ResNetOptions = field(default_factory=ResNetOptions)
    VISION_TRANSFORMERS: VisionTransformerOptions = field(default_factory=VisionTransformerOptions)
    REGNET: RegNetOptions = field(default_factory=RegNetOptions)
    EFFICIENT_NETS: EfficientNetOptions = field(default_factory=EfficientNetOptions)
    XCIT: XcitOptions = field(default_factory=XcitOptions)
    CONVIT: ConvitOptions = field(default_factory=ConvitOptions)
    SWIN_TRANSFORMER: SwinTransformerOptions = field(default_factory=SwinTransformerOptions)
    CONVNEXT: ConvNextOptions = field(default_factory=ConvNextOptions)
    BEIT: BeitOptions = field(default_factory=BeitOptions)
    MOBILE_NET: MobileNetOptions = field(default_factory=MobileNetOptions)
    TIMM: TimmOptions = field(default_factory=TimmOptions)
    TORCHVISION: TorchvisionOptions = field(default_factory=TorchvisionOptions)

    def library(self) -> LibraryOptions | None:
        """Of a trunk that is a network of another library, by its name there."""
        return {"timm": self.TIMM, "torchvision": self.TORCHVISION}.get(self.NAME)

    def check(self) -> Iterator[str]:
        chosen = self.library()
        if chosen is not None and not chosen.model:
            yield f"{self.NAME.upper()}.model: which of {self.NAME}'s networks? Give its name."


@dataclass
class HeadOptions:
    # [name, {arguments}] in a list: a chain on one feature, or one head on each of several.
    # A list of such lists: each is a head of its own, itself a chain.
    PARAMS: list[Any] = named(HEADS, [])
    # Of all batch norms in heads.
    BATCHNORM_EPS: float = 1e-5
    # The share of a new batch in the running statistics of all batch norms in heads.
    BATCHNORM_MOMENTUM: float = 0.1
    # On the initial weights and biases of all linear layers in heads.
    PARAMS_MULTIPLIER: float = 1.0


@dataclass
class FeatureEvalOptions:
    """A trained trunk under examination."""

    # Nothing is frozen, pooled or extracted without it.
    EVAL_MODE_ON: bool = False
    # The trunk is not trained, heads are.
    FREEZE_TRUNK_ONLY: bool = False
    # Nothing of the model is trained.
    FREEZE_TRUNK_AND_HEAD: bool = False
    # Give the trunk's features instead of what the heads make of them.
    EXTRACT_TRUNK_FEATURES_ONLY: bool = False
    # Take the heads' weights from WEIGHTS_INIT too, not the trunk's alone.
    EVAL_TRUNK_AND_HEAD: bool = False
    # Heads of another shape in the file are an error; false: they are left out.
    ASSERT_HEAD_LAYER_SHAPE_INIT: bool = True
    # Features pooled below become N x D.
    SHOULD_FLATTEN_FEATS: bool = True
    # [[feature, [pooling, [its arguments]]], ...]: as many features, one head each.
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
    # Ranks that share statistics: -1 those of a node, 0 all, N that many.
    GROUP_SIZE: int = -1

    def check(self) -> Iterator[str]:
        if self.GROUP_SIZE < -1:
            yield f"GROUP_SIZE: expected -1, 0 or a number of ranks; got {self.GROUP_SIZE}."


@dataclass
class GradScalerOptions:
    """torch's GradScaler; apex's own scaler takes `loss_scale` in AMP_ARGS."""

    # The loss is multiplied by this before it is run back ...
    init_scale: float = 65536.0
    # ... and the scale by this after growth_interval steps without overflow,
    growth_factor: float = 2.0
    # ... or by this after a step that overflowed, which is skipped.
    backoff_factor: float = 0.5
    # How many steps without overflow.
    growth_interval: int = 2000

    def check(self) -> Iterator[str]:
        if self.init_scale <= 0:
            yield f"init_scale: expected a number above 0, got {self.init_scale:g}."
        if self.growth_factor <= 1:
            yield f"growth_factor: expected a number above 1, got {self.growth_factor:g}."
        if not 0 < self.backoff_factor < 1:
            yield f"backoff_factor: expected a number from 0 to 1, got {self.backoff_factor:g}."
        if self.growth_interval < 1:
            yield f"growth_interval: expected 1 or more, got {self.growth_interval}."


@dataclass
class AmpOptions:
    # Train in mixed precision.
    USE_AMP: bool = False
    # apex or pytorch; without an apex that still has amp, pytorch serves.
    AMP_TYPE: str = "apex"
    # apex: opt_level O0 (float32), O1 or O2.
    AMP_ARGS: dict[str, Any] = field(default_factory=lambda: {"opt_level": "O1"})
    # pytorch: float16 (with loss scaling) or bfloat16.
    AMP_DTYPE: str = "float16"
    # The loss scaling of float16.
    GRAD_SCALER: GradScalerOptions = field(default_factory=GradScalerOptions)

    def check(self) -> Iterator[str]:
        yield from one_of(self, "AMP_TYPE", "apex", "pytorch")
        yield from one_of(self, "AMP_DTYPE", "float16", "bfloat16")
        if self.AMP_ARGS.get("opt_level", "O1") not in ("O0", "O1", "O2"):
            yield f"AMP_ARGS.opt_level: expected O0, O1 or O2; got {self.AMP_ARGS['opt_level']!r}."


@dataclass
class WeightsInitOptions:
    # Weights to start from: a checkpoint of sslengine, VISSL or another library (docs/weights.md),
    # or the folder of a run or a model. Not read when there is a checkpoint to resume.
    PARAMS_FILE: str = ""
    # Where in the file the state dict is: a key, a list of keys one inside the other, or "". Other
    # libraries' checkpoints are recognised if neither this nor a prefix is set.
    STATE_DICT_KEY_NAME: Any = "classy_state_dict"
    # Of a checkpoint whose method keeps a slow copy of the model (a teacher, a momentum encoder):
    # student, teacher, or auto, as the method has it (DINO: teacher; BYOL and MoCo: student).
    NETWORK: str = "auto"
    # Let weights for RGB images start a trunk that takes another number of channels, as timm does:
    # for one channel the sum of the three filters, for more these in turn, scaled by 3 / channels.
    ADAPT_INPUT_CHANNELS: bool = False
    # Names that contain one of these are neither read nor missed.
    SKIP_LAYERS: list[str] = field(default_factory=lambda: ["num_batches_tracked"])
    # Load any pickle, and run any code that it holds: for files of your own (--trust-pickle).
    TRUST_PICKLE: bool = False
    # On the names of a plain state dict: this is removed from the front,
    REMOVE_PREFIX: str = ""
    # ... then this is put there.
    APPEND_PREFIX: str = ""

    def says_where(self) -> bool:
        """Which tensors of the file are the trunk's, instead of what is recognised."""
        other = self.STATE_DICT_KEY_NAME != WeightsInitOptions.STATE_DICT_KEY_NAME
        return other or bool(self.REMOVE_PREFIX or self.APPEND_PREFIX)

    def key_path(self) -> list[str]:
        key = self.STATE_DICT_KEY_NAME
        return [key] if isinstance(key, str) and key else list(key or ())

    def check(self) -> Iterator[str]:
        yield from one_of(self, "NETWORK", *CHOICES)
        key = self.STATE_DICT_KEY_NAME
        if key is not None and not (
            isinstance(key, str)
            or (isinstance(key, list) and all(isinstance(each, str) for each in key))
        ):
            yield f"STATE_DICT_KEY_NAME: expected a key or a list of keys, got {key!r}."


@dataclass
class ActivationCheckpointingOptions:
    # Keep less of the forward pass, and compute it again in the backward pass.
    USE_ACTIVATION_CHECKPOINTING: bool = False
    # Parts of the trunk that are recomputed one at a time.
    NUM_ACTIVATION_CHECKPOINTING_SPLITS: int = 2

    def check(self) -> Iterator[str]:
        if self.NUM_ACTIVATION_CHECKPOINTING_SPLITS < 1:
            yield "NUM_ACTIVATION_CHECKPOINTING_SPLITS: expected 1 or more."


@dataclass
class GradClipOptions:
    # Bound the norm of the gradients.
    USE_GRAD_CLIP: bool = False
    # Which norm: 2, 1, inf.
    NORM_TYPE: float = field(default=2.0, metadata={"infinite": True})
    # The largest norm.
    MAX_NORM: float = 1.0
    # Of each parameter's gradient by itself, as DINO has it, not of all together.
    PER_PARAMETER: bool = False

    def check(self) -> Iterator[str]:
        if self.PER_PARAMETER and self.NORM_TYPE != 2.0:
            yield f"PER_PARAMETER: with NORM_TYPE 2 alone, got {self.NORM_TYPE:g}."


@dataclass
class FsdpOptions:
    # Cut the model into shards, one for each rank: TRAINER.TASK_NAME self_supervision_fsdp_task.
    AUTO_SETUP_FSDP: bool = False
    # Blocks with fewer parameters are gathered with the rest of the trunk, not on their own.
    AUTO_WRAP_THRESHOLD: int = 0
    # With AUTO_SETUP_FSDP and USE_AMP. O1: weights in float32; O2: in AMP_DTYPE.
    AMP_TYPE: str = "01"
    # Weights and inputs of a unit in compute_dtype while it runs.
    mixed_precision: bool = True
    # Add up gradients over ranks in float32, whatever compute_dtype is.
    fp32_reduce_scatter: bool = False
    # float32, bfloat16 or float16.
    compute_dtype: str = "float32"

    def compute(self) -> str:
        """What mixed precision computes in; float32 without it."""
        return self.compute_dtype if self.mixed_precision else "float32"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "compute_dtype", "float32", "bfloat16", "float16")
        yield from one_of(self, "AMP_TYPE", "01", "O1", "O2")
        if self.AUTO_WRAP_THRESHOLD < 0:
            yield f"AUTO_WRAP_THRESHOLD: expected 0 or more, got {self.AUTO_WRAP_THRESHOLD}."


@dataclass
class CompileOptions:
    # torch.compile the trunk and the heads; those of a sharded model block by block.
    USE_COMPILE: bool = False
    # inductor; eager and aot_eager to find out where a problem lies.
    BACKEND: str = "inductor"
    # Of inductor: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs.
    MODE: str = "default"

    def check(self) -> Iterator[str]:
        yield from one_of(
            self, "MODE", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
        )
        if self.MODE != "default" and self.BACKEND != "inductor":
            yield f"MODE: only inductor has modes, and BACKEND is {self.BACKEND!r}."


@section("MODEL", components=MODELS)
@dataclass
class ModelOptions:
    # A trunk with heads; or a model of your own, registered or pkg.module:Name. Its options stand
    # in a section of that name (the part after the colon).
    BASE_MODEL_NAME: str = named(MODELS, TRUNK_WITH_HEADS)
    TRUNK: TrunkOptions = field(default_factory=TrunkOptions)
    HEAD: HeadOptions = field(default_factory=HeadOptions)
    # rgb or bgr: the order in which the trunk gets the channels.
    INPUT_TYPE: str = "rgb"
    # Channels of the images that the trunk takes; auto: those that DATA's images have.
    INPUT_CHANNELS: int | str = "auto"
    # [[input key, [features]], ...] or
    # [[input key, {feat_names, head_index, additional_keys}], ...]: which head reads which input.
    MULTI_INPUT_HEAD_MAPPING: list[Any] = field(default_factory=list)
    # A trunk pass for every crop, where otherwise crops of one size go together. Saves memory.
    SINGLE_PASS_EVERY_CROP: bool = False
    # Each view of an image goes through trunk and heads by itself: a batch norm's batch is one
    # view's. SimSiam, BYOL, Barlow Twins and VICReg were published so.
    VIEWS_APART: bool = False
    # Keep images and filters as N x H x W x C in memory: faster for convolutions on most devices.
    CHANNELS_LAST: bool = False
    # Parameters that stay as they are initialised, by their full names.
    NON_TRAINABLE_PARAMS: list[str] = field(default_factory=list)
    # [[parameter, number of first iterations in which it stays], ...].
    TEMP_FROZEN_PARAMS_ITER_MAP: list[Any] = iterations([])
    FEATURE_EVAL_SETTINGS: FeatureEvalOptions = field(default_factory=FeatureEvalOptions)
    WEIGHTS_INIT: WeightsInitOptions = field(default_factory=WeightsInitOptions)
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
        yield from one_of(self, "INPUT_TYPE", "rgb", "bgr")
        channels = self.INPUT_CHANNELS
        if channels != "auto" and (not isinstance(channels, int) or channels < 1):
            yield f"INPUT_CHANNELS: expected auto, or a number of 1 or more; got {channels!r}."
        elif self.INPUT_TYPE == "bgr" and channels not in ("auto", 3):
            yield f"INPUT_TYPE: bgr is an order of three channels, not of {channels}."
        try:
            self.routes(where="")
        except ConfigError as error:
            yield str(error)

    def in_chans(self) -> int:
        """If the data was not checked, images are RGB."""
        return 3 if isinstance(self.INPUT_CHANNELS, str) else self.INPUT_CHANNELS

    def starts_from_library(self) -> bool:
        """With its own weights, where WEIGHTS_INIT names no file."""
        library = self.TRUNK.library() if self.BASE_MODEL_NAME == TRUNK_WITH_HEADS else None
        return library is not None and library.pretrained and not self.WEIGHTS_INIT.PARAMS_FILE

    def routes(self, where: str = "config.MODEL.") -> list[Route]:
        """Which input passes through what; raises ConfigError where the keys contradict."""
        settings = self.FEATURE_EVAL_SETTINGS
        return plan_routes(
            heads=self.HEAD.PARAMS,
            pooled=settings.LINEAR_EVAL_FEAT_POOL_OPS_MAP,
            mapping=self.MULTI_INPUT_HEAD_MAPPING,
            trunk_only=settings.EXTRACT_TRUNK_FEATURES_ONLY,
            where=where,
        )
