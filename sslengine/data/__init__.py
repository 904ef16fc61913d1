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
from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS

DATA_SOURCES.base = "sslengine.data.sources.base:DataSource"
DATA_SOURCES.declare("sslengine.data.sources.generated", "shapes", "upright_shapes")
DATA_SOURCES.declare("sslengine.data.sources.generated", "synthetic", options=SyntheticOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_folder", options=IndexOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_filelist", options=PathOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_roi_annotations", options=PathOptions)
DATA_SOURCES.declare("sslengine.data.sources.disk", "csv_filelist", options=TableOptions)
DATA_SOURCES.declare("sslengine.data.sources.tar", "webdataset", options=ShardOptions)
DATA_SOURCES.declare("sslengine.data.sources.array_file", "array_file", options=ArrayOptions)
DATA_SOURCES.declare(
    "sslengine.data.sources.hugging_face", "huggingface_dataset", options=ColumnOptions
)
DATA_SOURCES.declare("sslengine.data.sources.torchvision_sets", "torchvision_dataset")
DATA_SOURCES.declare("sslengine.data.sources.tar", "webdataset_stream", options=StreamOptions)
DATA_SOURCES.declare(
    "sslengine.data.sources.hugging_face", "huggingface_stream", options=HubStreamOptions
)
DATA_SOURCES.declare("sslengine.data.sources.video", "video", options=VideoOptions)

AUGMENT = "sslengine.data.augment"
TRANSFORMS.declare(
    f"{AUGMENT}.views",
    "ImgReplicatePil",
    "ImgPilToMultiCrop",
    "ImgPilMultiCropRandomApply",
    "ImgPilToPatchesAndImage",
    "RandomResizedCropWithBox",
)
TRANSFORMS.declare(f"{AUGMENT}.colour", "ImgPilColorDistortion", "ImgPilRandomColorJitter")
TRANSFORMS.declare(f"{AUGMENT}.blur", "ImgPilGaussianBlur")
TRANSFORMS.declare(f"{AUGMENT}.levels", "ImgPilRandomSolarize", "ImgPilRandomPhotometric")
TRANSFORMS.declare(f"{AUGMENT}.noise", "GaussianNoise", "ChannelDrop")
TRANSFORMS.declare(
    f"{AUGMENT}.geometry", "ImgRotatePil", "ImgPilResizeLargerSide", "MNISTImgPil2RGB"
)
TRANSFORMS.declare(f"{AUGMENT}.jigsaw", "ImgPatchesFromTensor", "ShuffleImgPatches")
TRANSFORMS.declare(f"{AUGMENT}.masking", "MaskedImageModeling", "RandomPatchMask")
TRANSFORMS.declare(f"{AUGMENT}.auto_augment", "RandAugment", "VisslAutoAugment")
TRANSFORMS.declare(f"{AUGMENT}.corrupt", "Corrupt")
TRANSFORMS.declare(f"{AUGMENT}.tensors", "ImgToTensor", "ImgPilToRawTensor", "OneHotEncode")

COLLATORS.declare(
    "sslengine.data.batch.collators",
    "default_collate",
    "simclr_collator",
    "multicrop_collator",
    "moco_collator",
    "siamese_collator",
    "patch_and_image_collator",
    "identity_collator",
    "targets_one_hot_default_collator",
    "cutmixup_collator",
    "multicrop_mixup_collator",
)
COLLATORS.declare(
    "sslengine.data.batch.masks",
    "ibot_multicrop_masking_collator",
    "spread_masks_collator",
    "dropped_patches_collator",
    "patch_noise_collator",
    "multi_block_collator",
    "visible_block_collator",
)
