"""What VISSL's YAML may say and sslengine does not have: NAMES of components, and keys.

Errors and warnings about these names and keys, the tables of docs/vissl_differences.md and `list
--vissl` are made from this file.

DEAD_KEYS are not in the schema, because nothing reads them. Setting one gives a warning that says
what to do instead, or an error if the run would differ from what the key requests. A value that
requests the behaviour that sslengine always has is accepted silently.

`*` in a name matches any part of it; in a key's path one name: a split of DATA, or a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_DISTILLATION = (
    "LOSS.distillation_loss.teacher names a trained network, and the student learns its features "
    "or scores; its options are other ones (configs/pretrain/distillation)"
)
_IBOT = "iBOT is here with dino_head and other options: config=pretrain/ibot/ibot_16gpu_vits16"
_CLASSY = "it is for Classy Vision's samples, a dict; here a transform gets the image"

# By the kind of component as errors name it (registry.py).
NAMES: dict[str, dict[str, str]] = {
    "trunk": {
        "alexnet_*": "alexnet is torchvision's network; published weights of these do not fit it",
        "classy_vit": "vision_transformer has the same layers and keys, other names of weights",
    },
    "head": {
        "eval_mlp_pooled": "it makes one prediction a token; take eval_mlp of lastPOOL",
        **dict.fromkeys(("ibot_head", "ibot_distillation_head"), _IBOT),
        "mlp_res": "it adds shortcuts to mlp; take mlp",
        "vision_transformer_head": (
            "take mlp with the dims [in_plane, num_classes]; there is no tanh after hidden_dim"
        ),
    },
    "loss": {
        "swav_momentum_loss": "take swav_loss, without a momentum encoder, or dino_loss with one",
        **{f"{each}_distillation_loss": _DISTILLATION for each in ("dino", "ibot", "msn", "swav")},
    },
    "meter": {"mean_ap_meter": "take mean_ap_list_meter"},
    "optimizer": {
        "rmsprop_tf": "take rmsprop, which adds eps outside of the root",
        "zero": "set OPTIMIZER.use_zero",
    },
    "task": {"self_supervision_sdp_task": "set OPTIMIZER.use_zero, or self_supervision_fsdp_task"},
    "data source": dict.fromkeys(
        ("airstore", "everstore"), "it is a service of Meta's; take disk_folder or disk_filelist"
    ),
    "transform": {
        "SSLTransformsWrapper": "list its transforms by themselves, with `indices` if it has any",
        "imagenet_autoaugment": "torchvision's AutoAugment has the same policy",
        **dict.fromkeys(
            ("generic_image_transform", "apply_transform_to_key", "tuple_to_map",
             "dummy_audio_transform"), _CLASSY,
        ),
    },
}  # fmt: skip


def instead_of(kind: str, name: str) -> str:
    """Return what to use in place of VISSL's component `name`, or an empty string."""
    found = (text for pattern, text in NAMES.get(kind, {}).items() if fnmatchcase(name, pattern))
    return next(found, "")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield all that is absent: its kind, its name or key, and what to do."""
    for kind, names in NAMES.items():
        yield from ((kind, name, text) for name, text in names.items())
    yield from (("key", path, key.instead) for path, key in DEAD_KEYS.items())


@dataclass(frozen=True)
class DeadKey:
    # Why it has no effect, or what to set instead.
    instead: str
    # Values that request the behaviour that sslengine always has.
    accepted: tuple[Any, ...] = ()
    # Other values are an error, not a warning.
    refused: bool = False
    # It is in a dict of arguments, not in a section of the schema.
    argument: bool = False

    def accepts(self, value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in self.accepted)


def _off(instead: str, *accepted: Any) -> DeadKey:
    """A feature that is not available: only the values that disable it are accepted."""
    return DeadKey(instead, accepted or (False,), refused=True)


def _same(paths: Iterable[str], key: DeadKey) -> dict[str, DeadKey]:
    return dict.fromkeys(paths, key)


_OTHER_TOOL = DeadKey("it is read by a tool of VISSL that sslengine does not have.")
_NOT_READ = DeadKey("VISSL never reads it.")
_NAMED = ("VISION_TRANSFORMERS", "XCIT", "SWIN_TRANSFORMER")
_EMA = "there is no moving average of the model; DINO, BYOL and MoCo keep their own teacher."
_FAIRSCALE = DeadKey("it is a setting of fairscale's FSDP, which torch's FSDP does not have.")

DEAD_KEYS: dict[str, DeadKey] = {
    "MONITOR_PERF_STATS": DeadKey("set HOOKS.PERF_STATS.MONITOR_PERF_STATS."),
    **_same(
        (
            "RANKING", "GEO_LOCALIZATION",
        ),
        _OTHER_TOOL,
    ),
    "DISTILLATION": _off(_DISTILLATION, None),
    # ---- processes
    "DISTRIBUTED.DISTR_ON": _NOT_READ,
    "DISTRIBUTED.INIT_METHOD": DeadKey(
        "processes always connect through a store; DISTRIBUTED.RUN_ID=host:port is its address "
        "for several nodes."
    ),
    "DISTRIBUTED.GATHER_METRIC_PERIOD": DeadKey(
        "losses of all ranks are averaged when they are read, by one collective per LOG_FREQUENCY."
    ),
    # ---- data
    "DATA.TRANSFORMS": DeadKey("set TRANSFORMS of DATA.TRAIN and DATA.TEST."),
    "DATA.*.BASE_DATASET": _off(
        "DATA_SOURCES names what is read", "generic_ssl"
    ),
    "DATA.*.MMAP_MODE": DeadKey(
        "long file lists are read from an index on disk as needed; CACHE_INDEX: false keeps them "
        "in memory.", (True,),
    ),
    "DATA.*.ENABLE_QUEUE_DATASET": DeadKey(
        "another sample always replaces an unreadable one.", (True,)
    ),
    "DATA.*.COLLATE_FUNCTION_PARAMS.create_multidimensional_tensor": DeadKey(
        "multicrop_collator always makes a list of the crops, without padding.", (False,),
        argument=True,
    ),
    "DATA.*.USE_STATEFUL_DISTRIBUTED_SAMPLER": DeadKey("every sampler can be resumed.", (True,)),
    # ---- model
    "MODEL.CUDA_CACHE": DeadKey("PyTorch's allocator needs no clearing; remove it."),
    "MODEL.SYNC_BN_CONFIG.SYNC_BN_TYPE": DeadKey(
        "torch's version replaces both types; CONVERT_BN_TO_SYNC_BN enables it.", ("pytorch",)
    ),
    "MODEL.SHARDED_DDP_SETUP.USE_SDP": _off(
        "not available; set OPTIMIZER.use_zero, or TRAINER.TASK_NAME of a sharded run"
    ),
    "MODEL.SHARDED_DDP_SETUP.reduce_buffer_size": DeadKey("see OPTIMIZER.use_zero.", (-1,)),
    **_same(
        (
            f"MODEL.FSDP_CONFIG.{key}"
            for key in (
                "FORCE_SYNC_CUDA", "flatten_parameters", "bucket_cap_mb", "clear_autocast_cache",
                "verbose",
            )
        ),
        _FAIRSCALE,
    ),
    # ---- trunks
    "MODEL.TRUNK.TRUNK_PARAMS": DeadKey("VISSL never reads it; set the keys of MODEL.TRUNK."),
    "MODEL.TRUNK.RESNETS.STANDARDIZE_CONVOLUTIONS": _NOT_READ,
    **_same(
        (f"MODEL.TRUNK.REGNET.{key}" for key in ("stage_checkpoints", "stage_checkpointing")),
        DeadKey("set MODEL.ACTIVATION_CHECKPOINTING: its parts have nearly equal length."),
    ),
    **_same((f"MODEL.TRUNK.{each}.name" for each in _NAMED), _NOT_READ),
    "MODEL.TRUNK.CONVIT.QKV_BIAS": _off("set VISION_TRANSFORMERS.QKV_BIAS", None),
    "MODEL.TRUNK.VISION_TRANSFORMERS.CLASSIFIER": _off(
        "to average the patches set USE_CLASS_TOKEN to false", "token"
    ),
    "MODEL.TRUNK.VISION_TRANSFORMERS.CHECKPOINT_MLP": _off(
        "set CHECKPOINT_BLOCK, which saves more"
    ),
    "MODEL.TRUNK.VISION_TRANSFORMERS.HYBRID": _off(
        "set STEM: conv for a convolutional stem", None, ""
    ),
    "MODEL.TRUNK.VISION_TRANSFORMERS.MASKED_IMAGE_MODELING.NAME": _off(
        "iBOT and MSN are here with other keys; begin with config=pretrain/ibot/ibot_16gpu_vits16 "
        "or config=pretrain/msn/msn_16gpu_vits16", "",
    ),
    "MODEL.TRUNK.VISION_TRANSFORMERS.MASKED_IMAGE_MODELING.PARAMS": DeadKey(
        "a mask token has no parameters.", ({},)
    ),
    "MODEL.TRUNK.XCIT.QK_SCALE": _off(
        "cross-covariance attention learns its temperature", False, None
    ),
    "MODEL.TRUNK.CONVIT.CLASS_TOKEN_IN_LOCAL_LAYERS": _off("a class token has no position"),
    "MODEL.TRUNK.MOBILE_NET.NAME": _off("there is one network", "mobilenetv3_large_100"),
    "MODEL.TRUNK.MOBILE_NET.PRETRAINED": _off(
        "weights are not downloaded; get the file and set MODEL.WEIGHTS_INIT.PARAMS_FILE"
    ),
    # ---- losses
    "LOSS.ignore_index": DeadKey("set it in the section of the loss."),
    "LOSS.*.buffer_params": DeadKey("the sizes are those of the batch; remove it."),
    "LOSS.*.embedding_dim": DeadKey("the width is that of the last head; remove it."),
    "LOSS.*.world_size": DeadKey("it is the number of ranks of the run; remove it."),
    "LOSS.*.queue.local_queue_length": DeadKey("set queue_length, for all ranks together."),
    "LOSS.*.output_dir": DeadKey("a loss that is not finite stops the run; no scores are dumped."),
    "LOSS.*.normalize_last_layer": DeadKey("VISSL never reads it; the head has such an argument."),
    "LOSS.*.DROP_LAST": DeadKey("every sample has a row in the memory; remove it."),
    "LOSS.*.BATCHSIZE_PER_REPLICA": DeadKey("every sample has a row in the memory; remove it."),
    "LOSS.*.reduction": DeadKey(
        "each loss has a fixed reduction; remove it.", ("mean", "none")
    ),
    # ---- what is measured
    "EXTRACT_FEATURES.MAP_FEATURES_TO_IMG_NAME": _off(
        "not available; the `inds` files map rows to images"
    ),
    "IMG_RETRIEVAL.EVAL_BINARY_PATH": DeadKey("the average precision is computed here.", ("",)),
    **_same(
        (f"IMG_RETRIEVAL.{key}" for key in ("SAVE_FEATURES", "USE_FEATURE_EXTRACTION_ENGINE")),
        DeadKey("features are always kept in a store.", (True, False)),
    ),
    "CLUSTERFIT.CLUSTER_BACKEND": DeadKey("k-means is computed by torch.", ("faiss",)),
    "SVM.low_shot.dataset_name": DeadKey(
        "the labels say whether images show one class or several.", ("voc", "places")
    ),
    "NEAREST_NEIGHBOR.OPTIMIZE_MEMORY": DeadKey(
        "similarities are always computed in blocks that fit into memory."
    ),
    "NEAREST_NEIGHBOR.USE_CUDA": DeadKey("set MACHINE.DEVICE.", (True,)),
    # ---- hooks
    **_same(
        ("HOOKS.EMA_MODEL.SAVE_EMA_MODEL", "HOOKS.EMA_MODEL.ENABLE_EMA_METERS"),
        _off(_EMA.removesuffix(".")),
    ),
    **_same(
        (f"HOOKS.EMA_MODEL.{key}" for key in ("UPDATE_ITER", "WARMUP", "DECAY", "EMA_DEVICE")),
        DeadKey(_EMA),
    ),
    "HOOKS.MEMORY_SUMMARY.DUMP_MEMORY_ON_EXCEPTION": _off("set HOOKS.MEMORY_SUMMARY.LOG_PEAKS"),
    **_same(
        (f"HOOKS.TENSORBOARD_SETUP.{key}" for key in ("LOG_DIR", "EXPERIMENT_LOG_DIR")),
        DeadKey("TensorBoard files are in tb_logs of the run's folder, as in VISSL."),
    ),
    "MONITORING.MONITOR_ACTIVATION_STATISTICS": _off("not available", 0),
    "PROFILING.RUNTIME_PROFILING.LEGACY_PROFILER": DeadKey(
        "torch.profiler is always used; torch's older profiler no longer exists."
    ),
    # ---- checkpoints
    "CHECKPOINT.BACKEND": _off("checkpoints are files", "disk"),
    "CHECKPOINT.USE_SYMLINK_CHECKPOINT_FOR_RESUME": DeadKey(
        "AUTO_RESUME always resumes from the newest checkpoint; "
        "LATEST_CHECKPOINT_RESUME_FILE_NUM chooses an older one.", (True,),
    ),
}  # fmt: skip


# Keys that VISSL knows for every data source, although one alone reads them: a warning elsewhere.
_FOR_ANY_SOURCE = (
    "DATA.*.REMOVE_IMG_PATH_PREFIX", "DATA.*.NEW_IMG_PATH_PREFIX",
    "DATA.*.RANDOM_SYNTHETIC_IMAGES", "DATA.*.RANDOM_SYNTHETIC_LABELS",
)  # fmt: skip


def is_of_vissl(path: str) -> bool:
    """May VISSL's YAML set it for a component that does not read it?"""
    bare = path.removeprefix("config.")
    return any(_matches(bare, pattern) for pattern in _FOR_ANY_SOURCE)


def dead_key(path: str) -> DeadKey | None:
    """Return the entry of a key path, which starts with `config.`."""
    root, _, bare = path.partition(".")
    found = (key for pattern, key in DEAD_KEYS.items() if _matches(bare, pattern))
    return next(found, None) if root == "config" else None


def has_no_effect(path: str) -> bool:
    """Whether the key, or a section that contains it, is in the table."""
    names = path.split(".")
    return any(dead_key(".".join(names[:count])) for count in range(2, len(names) + 1))


def is_above_dead_keys(path: str) -> bool:
    """Whether the path is a section that contains a key of the table."""
    root, *names = path.split(".")
    for pattern in DEAD_KEYS:
        section = pattern.split(".")[: len(names)]
        deeper = root == "config" and pattern.count(".") >= len(names) > 0
        if deeper and section[-1] != "*" and all(map(fnmatchcase, names, section)):
            return True
    return False


def _matches(path: str, pattern: str) -> bool:
    names, parts = path.split("."), pattern.split(".")
    return len(names) == len(parts) and all(map(fnmatchcase, names, parts))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the key paths and values below `value`; a key of the table is not entered."""
    if isinstance(value, Mapping) and dead_key(path) is None:
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    else:
        yield path, value
