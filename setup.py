"""The package's metadata. Tools are configured in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "sslengine" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]

TENSORBOARD = ["tensorboard>=2.12"]
SLURM = ["submitit>=1.5"]
FAST = ["numba>=0.60", "simplejpeg>=1.7.4"]
# Sources of images that are in other formats than files and folders of them.
TABLES = ["pyarrow>=14.0.1", "datasets>=2.16", "tifffile>=2023.1"]
# Weights for other libraries; the last two prove them.
EXPORT = ["onnx>=1.16", "onnxscript>=0.5", "onnxruntime>=1.18", "transformers>=4.48"]
# imagecodecs: compressions of TIFFs of many bands that tifffile alone cannot read.
TIFF = ["tifffile>=2023.1", "imagecodecs>=2023.1.23"]
VIDEO = ["av>=14"]
# Text encoders of the method CLIP.
TEXT = ["transformers>=4.48"]
# Each under its name, and all of them as `trackers`. They have many dependencies: tests of them
# have an environment of their own.
TRACKERS = {
    "wandb": ["wandb>=0.19"],
    "trackio": ["trackio>=0.39"],
    "swanlab": ["swanlab>=0.8"],
    "mlflow": ["mlflow>=3.9"],
}
TEST = [
    "pytest>=7.4",
    "setuptools>=68",  # a test builds the wheel
    "pytest-timeout>=2.2",
    "pytest-xdist>=3.5",
    "hypothesis>=6.90",
    "ruff>=0.6",
    "mypy>=1.11",
    "build>=1.0",
    *TENSORBOARD,
    *SLURM,
    *FAST,
    *TABLES,
    *TIFF,
    *VIDEO,
    *EXPORT,
    # Oracles, and a reader of the weights that are exported.
    "faiss-cpu>=1.8",
    "jedi>=0.19",
    "lightly>=1.5",
    "torchmetrics>=1.3",
]

setup(
    name="sslengine",
    version=VERSION,
    description="Self-supervised training in PyTorch: VISSL's YAML on today's torch.",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=[*find_packages(include=["sslengine", "sslengine.*"]), "sslengine.configs"],
    # The YAML travels with the wheel as sslengine/configs.
    package_dir={"sslengine.configs": "configs"},
    package_data={
        "sslengine": ["py.typed", "absent.json"],
        "sslengine.report": ["templates/*"],
        "sslengine.configs": ["**/*.yaml", "schema.json"],
    },
    entry_points={"console_scripts": ["sslengine = sslengine.command.front:main"]},
    install_requires=[
        "torch>=2.6",
        "torchvision>=0.21",
        "classy-vision>=0.7,<0.8",
        "fvcore>=0.1.5.post20221221",
        "iopath>=0.1.9",
        "hydra-core>=1.3,<1.4",
        "timm>=1.0.26",
        "scikit-learn>=1.2",
        "scipy>=1.10",
        "rich>=13",
        "numpy>=1.24",
        "pillow>=9.4",
        "safetensors>=0.4",
        "jinja2>=3.1",
    ],
    extras_require={
        "tensorboard": TENSORBOARD,
        "slurm": SLURM,
        "fast": FAST,
        "tables": TABLES,
        "export": EXPORT,
        "tiff": TIFF,
        "video": VIDEO,
        "text": TEXT,
        **TRACKERS,
        "trackers": [each for needs in TRACKERS.values() for each in needs],
        "bench": ["lightning>=2.2", "accelerate>=0.30", "lightly>=1.5"],
        "test": TEST,
    },
)
