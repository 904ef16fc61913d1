"""Facts about a run that methods need and that follow from several sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config.options import SHARDED_TASK
from sslengine.errors import listing, nearest
from sslengine.registry import TRANSFORMS


@dataclass(frozen=True)
class RunFacts:
    world_size: int = 1
    batch_size_per_replica: int = 1
    views_per_image: int = 1
    # The modules of all heads in order, as (name, arguments).
    heads: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    collator: str = ""
    # The side of a patch in pixels, of vision_transformer; 0: of another trunk, which knows it when
    # it is built.
    patch_size: int = 0
    # The kind of target: standard, sample_index, zero; "" if unknown.
    label_type: str = ""
    # Whether batch norms share statistics over ranks.
    sync_batch_norm: bool = False
    # Whether the run has test phases.
    test_phases: bool = False
    seed: int = 0
    # Of Normalize in the transforms: images are (pixels - mean) / std.
    normalize: tuple[Sequence[float], Sequence[float]] = ((0.0,), (1.0,))
    # Whether the folder of the run has checkpoints, so that it resumes: for the method alone.
    resumes: bool = False
    # Whether training starts from weights of an earlier training: for the method alone.
    starts_trained: bool = False
    # 0 and empty until the dataset is open.
    num_train_samples: int = 0
    batch_sizes: frozenset[int] = frozenset()  # of training batches, over all ranks

    @property
    def global_batch_size(self) -> int:
        return self.world_size * self.batch_size_per_replica

    def head(self, *names: str) -> Mapping[str, Any]:
        """Return the arguments of the first head of the first of these names that has one; {}."""
        found = (own for name in names for module, own in self.heads if module == name)
        return next(found, {})

    def with_data(self, num_train_samples: int, batch_sizes: Iterable[int] = ()) -> RunFacts:
        sizes = frozenset(batch_sizes)
        return replace(self, num_train_samples=num_train_samples, batch_sizes=sizes)


def run_facts(config: DictConfig) -> RunFacts:
    """Return the facts that follow from the config alone."""
    train = config.DATA.TRAIN
    transforms: Any = OmegaConf.to_container(train.TRANSFORMS)
    normalize = [
        (each["mean"], each["std"]) for each in transforms if {"mean", "std"} <= each.keys()
    ]
    return RunFacts(
        world_size=world_size(config),
        batch_size_per_replica=train.BATCHSIZE_PER_REPLICA,
        views_per_image=views_per_image(transforms),
        heads=tuple(_modules(OmegaConf.to_container(config.MODEL.HEAD.PARAMS))),
        collator=train.COLLATE_FUNCTION,
        patch_size=_patch_size(config.MODEL.TRUNK),
        label_type=train.LABEL_TYPE,
        test_phases=config.TEST_MODEL,
        seed=config.SEED_VALUE,
        normalize=normalize[-1] if normalize else RunFacts.normalize,
        sync_batch_norm=bool(config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN),
    )


def _modules(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the (name, arguments) of HEAD.PARAMS, nested ones too. check.py reports bad entries."""
    match entries:
        case [str(name), Mapping() as arguments, *_]:
            yield name.removesuffix("_fsdp"), arguments  # VISSL's second name of the same head
        case [*inner]:
            for entry in inner:
                yield from _modules(entry)


def _patch_size(trunk: DictConfig) -> int:
    transformer = str(trunk.NAME).startswith("vision_transformer")
    return int(trunk.VISION_TRANSFORMERS.PATCH_SIZE) if transformer else 0


def world_size(config: DictConfig) -> int:
    return int(config.DISTRIBUTED.NUM_NODES * config.DISTRIBUTED.NUM_PROC_PER_NODE)


def is_sharded(config: DictConfig) -> bool:
    return bool(config.TRAINER.TASK_NAME == SHARDED_TASK)


def lacks_loss_scaling(config: DictConfig) -> bool:
    """Tell whether a sharded model computes in float16 without a scaled loss."""
    fsdp = config.MODEL.FSDP_CONFIG
    half = fsdp.mixed_precision and fsdp.compute_dtype == "float16"
    scaled = "fp16" in (config.MACHINE.PRECISION, precision_of_amp(config.MODEL))
    return bool(half and not scaled)


def precision_of_amp(model: Any) -> str:
    """Return which precision MODEL.AMP_PARAMS asks for: fp32, fp16 or bf16.

    AMP_TYPE apex is torch's float16: NVIDIA removed `amp` from apex in 2025.
    """
    amp = model.AMP_PARAMS
    if not amp.USE_AMP:
        return "fp32"
    if amp.AMP_TYPE == "apex":
        return "fp32" if amp.AMP_ARGS.get("opt_level") == "O0" else "fp16"
    return "bf16" if amp.AMP_DTYPE == "bfloat16" else "fp16"


def views_per_image(transforms: Iterable[Mapping[str, Any]]) -> int:
    """Return how many views of one image the transforms make.

    A transform that makes several has a method `count_views(**its_arguments)`.
    """
    views = 1
    for entry in transforms:
        name = TRANSFORMS.name_in(entry)
        if hasattr(TRANSFORMS.get(name), "count_views"):
            arguments = {k: v for k, v in entry.items() if k not in TRANSFORMS.entry_keys}
            views *= TRANSFORMS.maker(name, arguments, method="count_views")()
    return views


def unique_names(names: Sequence[str]) -> list[str]:
    """Call a name that occurs again res4_1, as in VISSL."""
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}_{count}" if count else name for name, count in zip(names, before)]


# ---- `auto` in MODEL.HEAD.PARAMS

AUTO = "auto"


def auto_places(params: Any) -> Iterator[tuple[Any, str | int]]:
    """Yield the list or dict that contains each `auto`, and its index or key."""
    for _, arguments in _modules(params):
        for key, value in arguments.items():
            if isinstance(value, list) and value[:1] == [AUTO]:
                yield value, 0
            elif value == AUTO and str(key).startswith("in_"):
                yield arguments, str(key)


def class_places(params: Any) -> Iterator[list[Any]]:
    """Yield each `dims` whose last entry is `auto`."""
    for _, arguments in _modules(params):
        match arguments:
            case {"dims": [_, *_, "auto"] as dims}:
                yield dims


def fill_auto(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with 1 for `auto`, so that their types can be checked."""
    some = {key: [*each] if isinstance(each, list) else each for key, each in arguments.items()}
    for place, key in auto_places([["head", some]]):
        place[key] = 1
    for dims in class_places([["head", some]]):
        dims[-1] = 1
    return some


# ---- the augmentation back-end

# The packages of the extra `[fast]`.
FAST_PACKAGES = ("numba", "simplejpeg")
FAST, ALWAYS_THERE = "numba", "pil"
# Back-ends of earlier versions, which left a part of the work to a GPU.
REMOVED = ("device", "device_jpeg")


def missing_packages() -> list[str]:
    return [name for name in FAST_PACKAGES if find_spec(name) is None]


def best_backend() -> str:
    """Return the back-end that DATA.AUGMENT_BACKEND: auto selects."""
    return ALWAYS_THERE if missing_packages() else FAST


def why_not(name: str) -> str:
    """Return why the back-end of this name cannot be used; "" if it can."""
    names = ("auto", FAST, ALWAYS_THERE)
    if name not in names:
        return f"expected {listing(names)}; got {name!r}. {nearest(name, names)}".rstrip()
    missing = missing_packages()
    if name == FAST and missing:
        return (
            f"{name} requires {' and '.join(missing)}: pip install 'sslengine[fast]'. Or choose "
            f"{ALWAYS_THERE}, which requires no other package."
        )
    return ""
