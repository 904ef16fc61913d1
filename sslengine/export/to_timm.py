"""`--to timm`: one folder for timm, transformers (by its wrapper of timm) and lightly.

config.json must not have `model_type`: transformers then takes it for its wrapper of timm.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.subject import IMAGES, Preprocessing, Subject
from sslengine.export.twins import Twin, timm_twin

LOAD = """import timm
model = timm.create_model("local-dir:{folder}", pretrained=True).eval()
"""
TRANSFORM = """transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
"""
# timm's own transform is part of what is compared, if it can do what the run's did.
WITH_TRANSFORM = """from PIL import Image
images = torch.stack([transform(Image.fromarray(each.numpy())) for each in images])
features = model(images)"""
AUTO_MODEL = """from transformers import AutoModel
model = AutoModel.from_pretrained("{folder}").eval()
"""


def prepare(subject: Subject, license: str) -> Made:
    twin = timm_twin(subject)
    differs = subject.besides or subject.preprocessing.timm_differs()
    usage = LOAD + (transform_code(subject) if differs else TRANSFORM)
    first = Proof("timm", usage, "features = model(images)")
    if subject.pictures is not None and not differs:
        first = replace(
            first,
            features=WITH_TRANSFORM,
            given=subject.pictures,
            compared=f"features of {IMAGES} pictures, through timm's transform",
        )
    second = Proof("transformers", AUTO_MODEL, "features = model(images).pooler_output")
    return Made(
        partial(_write, subject, twin, license),
        usage=usage,
        example=torch_example(subject),
        proofs=(first, second),
        facts={"architecture": twin.design.name, "transform_differs": differs},
    )


def _write(subject: Subject, twin: Twin, license: str, folder: Path) -> None:
    save_file(twin.state, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(subject, twin, license)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config(subject: Subject, twin: Twin, license: str) -> dict[str, Any]:
    network: Any = twin.network
    arguments = {"in_chans": subject.channels} if subject.channels != 3 else {}
    config = {
        "architecture": twin.design.name,
        "num_classes": 0,
        "num_features": network.num_features,
        "model_args": {**twin.design.arguments, **arguments},
        "pretrained_cfg": _pretrained_cfg(subject, network, license),
    }
    pool = twin.design.arguments.get("global_pool", getattr(network, "global_pool", None))
    return {**config, "global_pool": pool} if isinstance(pool, str) and pool else config


def _pretrained_cfg(subject: Subject, network: Any, license: str) -> dict[str, Any]:
    theirs = dict(network.pretrained_cfg)
    kept = {key: theirs[key] for key in ("first_conv", "classifier") if theirs.get(key)}
    given: Preprocessing = subject.preprocessing
    return {
        **kept,
        "input_size": list(subject.images.shape[1:]),
        "fixed_input_size": bool(theirs.get("fixed_input_size", False)),
        "mean": given.mean,
        "std": given.std,
        "interpolation": given.interpolation,
        "crop_pct": given.crop_pct,
        "crop_mode": given.crop_mode,
        "num_classes": 0,
        "tag": "sslengine",
        **({"license": license} if license else {}),
    }
