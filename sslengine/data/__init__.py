"""Data sources, dataset, transforms, collators, samplers, loader."""

from sslengine.data.options import (
    ArrayOptions,
    ColumnOptions,
    HubStreamOptions,
    IndexOptions,
    PathOptions,
    ShardOptions,
    StreamOptions,
    SyntheticOptions,
    TableOptions,
    VideoOptions,
)
from sslengine.registry import AUGMENT_BACKENDS, COLLATORS, DATA_SOURCES, TRANSFORMS

DATA_SOURCES.base = "sslengine.data.sources.base:DataSource"
DATA_SOURCES.declare("sslengine.data.sources.shapes", "shapes", "upright_shapes")
DATA_SOURCES.declare("sslengine.data.sources.synthetic", "synthetic", options=SyntheticOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_folder", options=IndexOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_filelist", options=PathOptions)
DATA_SOURCES.declare("sslengine.data.sources.tables", "csv_filelist", options=TableOptions)
DATA_SOURCES.declare("sslengine.data.sources.tar_shards", "webdataset", options=ShardOptions)
DATA_SOURCES.declare("sslengine.data.sources.array_file", "array_file", options=ArrayOptions)
DATA_SOURCES.declare(
    "sslengine.data.sources.hugging_face", "huggingface_dataset", options=ColumnOptions
)
DATA_SOURCES.declare("sslengine.data.sources.regions", "disk_roi_annotations", options=PathOptions)
DATA_SOURCES.declare("sslengine.data.sources.torchvision_sets", "torchvision_dataset")
DATA_SOURCES.declare(
    "sslengine.data.sources.tar_stream", "webdataset_stream", options=StreamOptions
)
DATA_SOURCES.declare(
    "sslengine.data.sources.hub_stream", "huggingface_stream", options=HubStreamOptions
)
DATA_SOURCES.declare("sslengine.data.sources.video", "video", options=VideoOptions)

TRANSFORMS.declare(
    "sslengine.data.augment.transforms.views", "ImgReplicatePil", "ImgPilToPatchesAndImage"
)
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.multicrop", "ImgPilToMultiCrop", "ImgPilMultiCropRandomApply"
)
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.conversion",
    "ImgToTensor",
    "ImgPilToRawTensor",
    "ImgPilResizeLargerSide",
    "MNISTImgPil2RGB",
)
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.masking", "MaskedImageModeling", "RandomPatchMask"
)
TRANSFORMS.declare("sslengine.data.augment.transforms.one_hot", "OneHotEncode")
TRANSFORMS.declare("sslengine.data.augment.transforms.lab", "ImgPil2LabTensor")
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.classy",
    "imagenet_augment",
    "imagenet_no_augment",
    "lighting",
    "video_clip_random_resize_crop",
    "video_clip_resize",
    "video_default_augment",
    "video_default_no_augment",
)
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.auto_augment", "RandAugment", "VisslAutoAugment"
)
TRANSFORMS.declare("sslengine.data.augment.transforms.rotation", "ImgRotatePil")
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.jigsaw", "ImgPatchesFromTensor", "ShuffleImgPatches"
)
TRANSFORMS.declare(
    "sslengine.data.augment.transforms.jitter", "ImgPilColorDistortion", "ImgPilRandomColorJitter"
)
TRANSFORMS.declare("sslengine.data.augment.transforms.corruption", "Corrupt")
TRANSFORMS.declare("sslengine.data.augment.transforms.photometric", "ImgPilRandomPhotometric")
TRANSFORMS.declare("sslengine.data.augment.operations.blur", "ImgPilGaussianBlur")
TRANSFORMS.declare("sslengine.data.augment.operations.noise", "GaussianNoise")
TRANSFORMS.declare("sslengine.data.augment.operations.channel_drop", "ChannelDrop")
TRANSFORMS.declare("sslengine.data.augment.operations.solarize", "ImgPilRandomSolarize")

COLLATORS.declare(
    "sslengine.data.batch.collators",
    "default_collate",
    "simclr_collator",
    "multicrop_collator",
    "moco_collator",
    "siamese_collator",
    "patch_and_image_collator",
    "identity_collator",
)
COLLATORS.declare(
    "sslengine.data.batch.block_masks", "ibot_multicrop_masking_collator", "spread_masks_collator"
)
COLLATORS.declare(
    "sslengine.data.batch.dropped_patches", "dropped_patches_collator", "patch_noise_collator"
)
COLLATORS.declare("sslengine.data.batch.mixing", "cutmixup_collator", "multicrop_mixup_collator")
COLLATORS.declare("sslengine.data.batch.multi_block", "multi_block_collator")
COLLATORS.declare("sslengine.data.batch.visible_block", "visible_block_collator")
COLLATORS.declare("sslengine.data.batch.one_hot_targets", "targets_one_hot_default_collator")

AUGMENT_BACKENDS.declare("sslengine.data.augment.backends.pil", "pil")
AUGMENT_BACKENDS.declare("sslengine.data.augment.backends.compiled", "numba")
