"""The trunks of Classy Vision.

Classy Vision imports modules that it deprecates itself; users need not see those warnings.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from classy_vision.models import MODEL_REGISTRY
    from classy_vision.models.anynet import (
        ActivationType,
        AnyNet,
        AnyNetParams,
        BlockType,
        StemType,
    )
    from classy_vision.models.efficientnet import MODEL_PARAMS, EfficientNet, MBConvBlock
    from classy_vision.models.regnet import RegNet, RegNetParams

__all__ = [
    "MODEL_PARAMS",
    "MODEL_REGISTRY",
    "ActivationType",
    "AnyNet",
    "AnyNetParams",
    "BlockType",
    "EfficientNet",
    "MBConvBlock",
    "RegNet",
    "RegNetParams",
    "StemType",
]
