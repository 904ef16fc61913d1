from __future__ import annotations

import pytest
import torch

from sslengine.losses.gram import gram_anchoring


def test_value_and_gradient_by_the_formula() -> None:
    torch.manual_seed(0)
    student = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for ours, theirs in zip(student, teacher.detach(), strict=True):
        for i in range(3):
            for j in range(3):
                cosines = [
                    row[i] @ row[j] / (row[i].norm() * row[j].norm()) for row in (ours, theirs)
                ]
                total = total + (cosines[0] - cosines[1]) ** 2 / (2 * 3 * 3)
    found = gram_anchoring(student, teacher)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(
        torch.autograd.grad(found, student), torch.autograd.grad(total, student)
    )
    assert not found.requires_grad or teacher.grad is None
    assert gram_anchoring(student, student.detach() * 3) < 1e-20


def test_other_patches() -> None:
    with pytest.raises(ValueError, match=r"the same patches, got \(2, 3, 5\) and \(2, 4, 5\)"):
        gram_anchoring(torch.ones(2, 3, 5), torch.ones(2, 4, 5))
