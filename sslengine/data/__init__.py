"""Data sources, dataset, transforms, collators, samplers, loader."""

from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS

DATA_SOURCES.declare("sslengine.data.sources.shapes", "shapes")
DATA_SOURCES.declare("sslengine.data.sources.synthetic", "synthetic")
DATA_SOURCES.declare("sslengine.data.sources.disk", "disk_folder", "disk_filelist")
DATA_SOURCES.declare("sslengine.data.sources.torchvision_sets", "torchvision_dataset")

TRANSFORMS.declare("sslengine.data.transforms.views", "ImgReplicatePil", "ImgPilToPatchesAndImage")
TRANSFORMS.declare(
    "sslengine.data.transforms.colour",
    "ImgPilColorDistortion",
    "ImgPilGaussianBlur",
    "ImgPilRandomPhotometric",
    "ImgPilRandomSolarize",
)

COLLATORS.declare(
    "sslengine.data.collators",
    "default_collate",
    "simclr_collator",
    "patch_and_image_collator",
)
