"""No head: the feature itself."""

from __future__ import annotations

from torch import nn

from sslengine.registry import register_head


@register_head("identity")
class Identity(nn.Identity):
    def __init__(self) -> None:
        super().__init__()
