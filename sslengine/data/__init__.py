"""Data sources, dataset, transforms, collators, samplers, loader."""

from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS

DATA_SOURCES.declare("sslengine.data.sources.shapes", "shapes", "upright_shapes")
DATA_SOURCES.declare("sslengine.data.sources.synthetic", "synthetic")
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_folder", "disk_filelist")
DATA_SOURCES.declare("sslengine.data.sources.torchvision_sets", "torchvision_dataset")

TRANSFORMS.declare("sslengine.data.transforms.views", "ImgReplicatePil", "ImgPilToPatchesAndImage")
TRANSFORMS.declare(
    "sslengine.data.transforms.multicrop", "ImgPilToMultiCrop", "ImgPilMultiCropRandomApply"
)
TRANSFORMS.declare(
    "sslengine.data.transforms.conversion",
    "ImgToTensor",
    "ImgPilToRawTensor",
    "ImgPilResizeLargerSide",
    "MNISTImgPil2RGB",
)
TRANSFORMS.declare("sslengine.data.transforms.auto_augment", "RandAugment", "VisslAutoAugment")
TRANSFORMS.declare("sslengine.data.transforms.rotation", "ImgRotatePil")
TRANSFORMS.declare("sslengine.data.transforms.jigsaw", "ImgPatchesFromTensor", "ShuffleImgPatches")
TRANSFORMS.declare(
    "sslengine.data.transforms.colour",
    "ImgPilColorDistortion",
    "ImgPilGaussianBlur",
    "ImgPilRandomColorJitter",
    "ImgPilRandomPhotometric",
    "ImgPilRandomSolarize",
)

COLLATORS.declare(
    "sslengine.data.collators",
    "default_collate",
    "simclr_collator",
    "multicrop_collator",
    "moco_collator",
    "siamese_collator",
    "patch_and_image_collator",
)
COLLATORS.declare("sslengine.data.mixing", "cutmixup_collator")
