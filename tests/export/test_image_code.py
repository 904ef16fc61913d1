"""The lines that crop pictures in the page of an ONNX file, beside torchvision's CenterCrop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import CenterCrop

from sslengine.export.image_code import view_code
from tests.export.subjects import subject, timm_vit

SIDES = range(17, 49)  # smaller and larger than the crop


@pytest.mark.parametrize("crop", [[32, 32], [24, 40]])
def test_all_margins_are_cropped_and_padded_as_torchvision_does(crop: list[int]) -> None:
    """Half of an odd margin is rounded in another way where pixels are added."""
    view = [{"name": "CenterCrop", "size": crop}, {"name": "ToTensor"}]
    given = subject(timm_vit(img_size=crop), DATA__TEST__TRANSFORMS=view)
    found: dict[str, Any] = {}
    exec(view_code(given, "uint8"), found)
    draw = np.random.default_rng(0)
    for side in SIDES:
        for shape in ((side, 48), (48, side), (side, 65 - side)):
            picture = Image.fromarray(draw.integers(1, 256, (*shape, 3), dtype=np.uint8))
            wanted = np.asarray(CenterCrop(crop)(picture))
            np.testing.assert_array_equal(found["view"](picture), wanted, f"{shape}")
