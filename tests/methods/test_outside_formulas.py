"""Three methods that a user might write, against their papers' formulas, in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.methods.base import Step
from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.vision_transformer import VisionTransformer
from tests.methods.outside.clip_like import CLIPLike
from tests.methods.outside.ibot import IBOT, MaskedVisionTransformer, TokenHead
from tests.methods.outside.nnclr import NNCLR

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def _draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm()


def _log_p(scores: list[Tensor], chosen: int) -> Tensor:
    return scores[chosen] - torch.stack(scores).exp().sum().log()


def _gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


# ---- CLIP's loss


def clip_loss(images: Tensor, texts: Tensor, logit_scale: Tensor) -> Tensor:
    """Figure 3, entry by entry."""
    score = [[logit_scale.exp() * (_unit(i) @ _unit(t)) for t in texts] for i in images]
    of_images = [_log_p(row, k) for k, row in enumerate(score)]
    of_texts = [_log_p([row[k] for row in score], k) for k in range(len(score))]
    return -(sum(of_images) + sum(of_texts)) / (2 * len(score))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_clip_value_and_gradients(temperature: float) -> None:
    loss, output = CLIPLike(temperature).double(), _draw(10, 4).requires_grad_()
    step = Step.alone()
    ours, theirs = loss(output, {}, step), clip_loss(*output.chunk(2), loss.logit_scale)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    wanted = (output, loss.logit_scale)
    torch.testing.assert_close(_gradients(ours, *wanted), _gradients(theirs, *wanted), **CLOSE)
    assert float(step.metrics["temperature"]) == pytest.approx(temperature)


def test_clip_never_sharper() -> None:
    loss = CLIPLike(0.001)
    loss.after_update(Step.alone())
    assert loss.logit_scale.item() == pytest.approx(math.log(100.0))


# ---- NNCLR


def nnclr_loss(loss: NNCLR, z: Tensor, queue: Tensor) -> Tensor:
    """The paper's pseudo-code, image by image."""
    p, n, terms = loss.predictor(z), len(z) // 2, []
    for first in (0, n):
        for i in range(n):
            near = [_unit(z[first + i].detach()) @ _unit(row) for row in queue]
            found = _unit(queue[near.index(max(near))])
            other = (first + n) % (2 * n)
            terms.append(
                _log_p([found @ _unit(p[other + k]) / loss.temperature for k in range(n)], i)
            )
    return -sum(terms) / (2 * n)


def _nnclr(rows: int = 9) -> NNCLR:
    torch.manual_seed(0)
    loss = NNCLR(dim=4, hidden=5, rows=rows).double()
    loss.queue.copy_(nn.functional.normalize(loss.queue, dim=1))  # of length 1 in double precision
    return loss


def test_nnclr_value_and_gradients() -> None:
    loss, z = _nnclr(), _draw(6, 4, seed=2).requires_grad_()
    before = loss.queue.clone()
    ours = loss(z, {"target": torch.zeros(6, dtype=torch.long)}, Step.alone())
    theirs = nnclr_loss(loss, z, before)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    wanted = (z, *loss.parameters())
    torch.testing.assert_close(_gradients(ours, *wanted), _gradients(theirs, *wanted), **CLOSE)


def test_nnclr_queue_takes_first_views_and_drops_the_oldest() -> None:
    loss, labels = _nnclr(rows=5), torch.arange(3)
    batches = [_draw(6, 4, seed=seed) for seed in range(3)]
    for number, z in enumerate(batches):
        loss(z, {"target": (labels + 10 * number).repeat(2)}, Step.alone())
    assert sorted(loss.labels.tolist()) == [11, 12, 20, 21, 22]
    for label, row in zip(loss.labels.tolist(), loss.queue, strict=True):
        torch.testing.assert_close(row, _unit(batches[label // 10][label % 10]), **CLOSE)


def test_nnclr_tells_how_often_neighbours_have_the_label() -> None:
    """What was put into the queue is looked up: its neighbours are itself."""
    loss, z = _nnclr(rows=3), _draw(3, 4).repeat(2, 1)
    told = []
    for labels in ([0, 1, 2], [0, 1, 2], [0, 1, 5]):
        step = Step.alone()
        loss(z, {"target": torch.tensor(labels * 2)}, step)
        told.append(float(step.metrics["neighbours_with_the_same_label"]))
    assert told == pytest.approx([0.0, 1.0, 2 / 3])


# ---- iBOT

IMAGES, PATCHES, SCORES = 3, 4, 5


class Toy(nn.Module):
    """Gives scores of tokens as a model would, of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(_draw(6, SCORES))

    def forward(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        names = [name for name in ("global_views", "local_views") if name in inputs]
        return [inputs[name] @ self.weight for name in names]


def _ibot() -> tuple[IBOT, Toy, dict[str, Any]]:
    model = Toy()
    loss = IBOT(scores=SCORES, warmup_epochs=4).double()
    loss.teacher.attach(model)
    with torch.no_grad():
        loss.teacher.module.weight.copy_(_draw(6, SCORES, seed=1))
        loss.centers.copy_(_draw(2, SCORES, seed=2))
    mask = _draw(2 * IMAGES, 2, 2, seed=3) > 0.3
    mask[1] = False  # an image without a hidden patch
    inputs = {"global_views": _draw(2 * IMAGES, 1 + PATCHES, 6, seed=4),
              "local_views": _draw(2 * IMAGES, 6, seed=5), "mask": mask}  # fmt: skip
    return loss, model, {"input": inputs}


def ibot_loss(loss: IBOT, model: Toy, sample: dict[str, Any], temperature: float) -> list[Tensor]:
    """Image by image and view by view: class tokens, patches."""
    inputs = sample["input"]
    student, local = model(inputs)
    teacher = (inputs["global_views"] @ loss.teacher.module.weight).detach()

    def cross(t: Tensor, center: Tensor, temp: float, s: Tensor) -> Tensor:
        e = ((t - center) / temp).exp()
        return -sum((e[k] / e.sum()) * _log_p(list(s / 0.1), k) for k in range(SCORES))

    views = [*student[:, 0].chunk(2), *local.chunk(2)]
    classes = [
        cross(teacher[u * IMAGES + i, 0], loss.centers[0], 0.04, views[v][i])
        for i in range(IMAGES) for u in range(2) for v in range(4) if v != u
    ]  # fmt: skip
    patches = []
    for row, hidden in enumerate(inputs["mask"].flatten(1)):
        each = [cross(teacher[row, 1 + j], loss.centers[1], temperature, student[row, 1 + j])
                for j in range(PATCHES) if hidden[j]]  # fmt: skip
        patches.append(sum(each) / max(1, len(each)))
    return [sum(classes) / len(classes), sum(patches) / len(patches)]


@pytest.mark.parametrize(("epoch", "temperature"), [(0, 0.04), (1, 0.05), (3, 0.07), (9, 0.07)])
def test_ibot_value_gradients_and_centres(epoch: int, temperature: float) -> None:
    loss, model, sample = _ibot()
    classes, patches = ibot_loss(loss, model, sample, temperature)
    before = loss.centers.clone()
    ours = loss(model(sample["input"]), sample, Step.alone(epoch=epoch))
    expected = {"loss": classes + patches, "classes": classes, "patches": patches}
    torch.testing.assert_close(ours, expected, **CLOSE)
    gradients = [_gradients(each["loss"], model.weight) for each in (ours, expected)]
    torch.testing.assert_close(*gradients, **CLOSE)
    scores = sample["input"]["global_views"] @ loss.teacher.module.weight
    means = torch.stack([scores[:, 0].mean(0), scores[:, 1:].mean(1).mean(0)])
    torch.testing.assert_close(loss.centers, 0.9 * before + 0.1 * means, **CLOSE)


def test_ibot_hidden_patches_are_not_seen() -> None:
    torch.manual_seed(0)
    options = VisionTransformerOptions(
        IMAGE_SIZE=8, PATCH_SIZE=2, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=16, MLP_DIM=16
    )
    trunk = MaskedVisionTransformer(options).double().eval()
    images, mask = _draw(2, 3, 8, 8), torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = True
    changed = images.clone()
    changed[0, :, 2:4, 4:6] = 0.0
    (seen,), (again,) = (trunk(each, ["lastBLK"], mask=mask) for each in (images, changed))
    assert torch.equal(seen, again)
    plain = VisionTransformer(options).double().eval()
    plain.load_state_dict(trunk.state_dict(), strict=False)
    torch.testing.assert_close(trunk(images, ["lastBLK"]), plain(images, ["lastBLK"]), **CLOSE)
    torch.testing.assert_close(seen[1], plain(images, ["lastBLK"])[0][1], **CLOSE)
    seen.sum().backward()
    assert trunk.mask_token.grad is not None


def test_ibot_one_head_for_class_tokens_and_patches() -> None:
    torch.manual_seed(0)
    head = TokenHead(in_dim=6, num_clusters=[5], hidden_dim=4, bottleneck_dim=3).double()
    tokens = _draw(2, 4, 6)
    for place in range(4):
        torch.testing.assert_close(head(tokens)[:, place], head(tokens[:, place]), **CLOSE)
