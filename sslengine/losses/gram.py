"""Gram anchoring: the patches of an image keep the similarities that another network gives them.

Simeoni et al., DINOv3, 2025. With S and G the patch features of student and teacher, L x D for each
image, rows scaled to unit length,

    loss = mean over images and pairs of patches of (S S^T - G G^T)^2
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def gram_anchoring(student: Tensor, teacher: Tensor) -> Tensor:
    """The loss of N x L x D features; both have the same patches, and the teacher no gradient.

    A teacher that sees larger images has its map resized to the student's patches beforehand.
    """
    if student.shape[:2] != teacher.shape[:2]:
        raise ValueError(
            f"gram_anchoring: expected features of the same patches, got {tuple(student.shape)} "
            f"and {tuple(teacher.shape)}."
        )
    ours, theirs = (F.normalize(each, dim=-1) for each in (student, teacher.detach()))
    return F.mse_loss(ours @ ours.mT, theirs @ theirs.mT)
