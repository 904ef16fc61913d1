"""What a step launches, beside the same method written by hand around the same model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.components import owns_network
from sslengine.models.view_trunk import parameters_with_trunk
from sslengine.registry import LOSSES
from tests.engine.operations import Case
from tests.integration.test_configs import QUICK
from tests.tail import slow_but
from tools.perf_measurement import by_hand
from tools.perf_measurement.by_hand import Batch, ByHand


def _swav(case: Case) -> ByHand:
    """As the authors', whose loop over pairs of crops is one product of matrices here."""
    options, head = case.loss.options, case.model.heads[0]

    def codes(scores: Tensor) -> Tensor:
        shares = torch.exp(scores / options.epsilon).mT
        shares /= shares.sum(dim=(-2, -1), keepdim=True)
        for _ in range(options.num_iters):
            shares /= shares.sum(dim=-1, keepdim=True) * shares.shape[-2]
            shares /= shares.sum(dim=-2, keepdim=True) * shares.shape[-1]
        return shares.mT * shares.shape[-1]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        crops = model(batch["data"])[1].unflatten(0, (options.num_crops, -1))
        with torch.no_grad():
            targets = codes(crops[:2])
        log_p = F.log_softmax(crops / options.temperature, dim=-1)
        pairs = torch.einsum("abk,vbk->av", targets, log_p)
        others = pairs.sum() - pairs[0, 0] - pairs[1, 1]
        return -others / (2 * (options.num_crops - 1) * crops.shape[1])

    @torch.no_grad()
    def normalize() -> None:
        head.prototypes0.weight.copy_(F.normalize(head.prototypes0.weight, dim=1))

    return loss, [normalize]


def _barlow_twins(case: Case) -> ByHand:
    """As the authors': batch norms without weights, the diagonal apart."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        first, second = (
            F.batch_norm(each, None, None, training=True)
            for each in model(batch["data"])[0].chunk(2)
        )
        matrix = first.T @ second
        matrix.div_(len(first))
        on_diagonal = torch.diagonal(matrix).add_(-1).pow_(2).sum()
        return 0.024 * (on_diagonal + 0.0051 * _off_diagonal(matrix).pow_(2).sum())

    return loss, []


def _vicreg(case: Case) -> ByHand:
    """As the authors': the two views apart."""
    options = case.loss.options

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        first, second = model(batch["data"])[0].chunk(2)
        loss = options.sim_coeff * F.mse_loss(first, second)
        for view in (first, second):
            rows = view - view.mean(dim=0)
            variance = F.relu(1 - torch.sqrt(rows.var(dim=0) + 1e-4)).mean() / 2
            matrix = rows.T @ rows / (len(rows) - 1)
            covariance = _off_diagonal(matrix).pow(2).sum() / matrix.shape[1]
            loss = loss + options.std_coeff * variance + options.cov_coeff * covariance
        return loss

    return loss, []


def _simsiam(case: Case) -> ByHand:
    """As the authors' pseudocode."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        projections, predictions = model(batch["data"])
        (first, second), (own, other) = predictions.chunk(2), projections.detach().chunk(2)
        cosines = (F.cosine_similarity(*pair).mean() for pair in ((first, other), (second, own)))
        return -0.5 * sum(cosines)

    return loss, []


def _byol(case: Case) -> ByHand:
    teacher = copy.deepcopy(case.loss.teacher.module)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        predictions = F.normalize(model(batch["data"])[1])
        with torch.no_grad():
            features = teacher.trunk(batch["data"])[0]
            targets = F.normalize(teacher.heads[0].projector(features))
        first, second = targets.chunk(2)
        return 4 - 4 * (predictions * torch.cat([second, first])).sum(dim=1).mean()

    return loss, [lambda: by_hand.follow(teacher, case.model, 0.97)]


def _clip(case: Case) -> ByHand:
    method = case.loss

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        (view,) = batch["data"]
        images = F.normalize(method.image_projection(model.trunk(view)[0].flatten(1)))
        texts = F.normalize(method.text_projection(batch["caption_vector"]))
        scale, own = method.logit_scale.exp(), torch.arange(len(texts))
        of_image = F.cross_entropy(scale * images @ texts.T, own)
        return (of_image + F.cross_entropy(scale * texts @ images.T, own)) / 2

    return loss, [lambda: method.after_update(None)]


def _ijepa(case: Case) -> ByHand:
    """As the authors': a sequence for each target block, the blocks one after the other."""
    teacher, predictor = copy.deepcopy(case.loss.teacher.module), case.loss.predictor

    def at(tokens: Tensor, places: Tensor) -> Tensor:
        return tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        shown, blocks = batch["shown"], batch["target_blocks"].unbind(1)
        with torch.no_grad():
            tokens = teacher.trunk(batch["data"], ["lastBLK"])[0]
            tokens = F.layer_norm(tokens, tokens.shape[-1:])
            targets = torch.cat([at(tokens, block) for block in blocks])
        context = model.trunk(batch["data"], ["lastBLK"], shown=shown)[0]
        positions = predictor.positions.table
        seen = predictor.embed(context) + positions[shown]
        asked = predictor.hidden_token + positions[torch.cat(blocks)]
        tokens = torch.cat([seen.repeat(len(blocks), 1, 1), asked], dim=1)
        predicted = predictor.norm(predictor.blocks(tokens))[:, shown.shape[1] :]
        return F.smooth_l1_loss(predictor.project(predicted), targets)

    return loss, [lambda: by_hand.follow(teacher, case.model, 0.99)]


def _capi(case: Case) -> ByHand:
    """As the authors', whose Sinkhorn-Knopp divides; a rotation is computed once for all blocks."""
    options, method = case.loss.options, case.loss
    teacher, predictor, clusters = (
        copy.deepcopy(method.teacher.module),
        method.predictor,
        method.clusters,
    )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, shown, predicted = (batch[each] for each in ("data", "shown", "predicted"))
        with torch.no_grad():
            tokens = teacher.trunk(images, ["lastPATCH"])[0]
        scores = clusters(F.normalize(tokens, dim=-1))
        with torch.no_grad():
            q = scores.detach().transpose(0, 1) / options.target_temp
            q = torch.exp(q - q.amax(dim=1, keepdim=True))
            for _ in range(3):
                q = q / (q.sum(dim=1, keepdim=True) + 1e-8)
                q = q / (q.sum(dim=2, keepdim=True) + 1e-8)
            q = q.transpose(0, 1)
            targets = q.gather(1, predicted.unsqueeze(-1).expand(-1, -1, q.shape[-1]))
        log_p = F.log_softmax(scores / options.cluster_temp, dim=-1)
        context = model.trunk(images, ["lastBLK"], shown=shown)[0]
        guesses = method.head(predictor(context, shown, predicted, (8, 8))) / options.student_temp
        crossed = -(targets * F.log_softmax(guesses, dim=-1)).sum(-1).mean()
        return crossed - (q * log_p).sum(-1).mean()

    momentum = method.teacher._momentum_at
    return loss, [lambda: by_hand.follow(teacher, case.model, momentum(case.task.where))]


def _simmim(case: Case) -> ByHand:
    """As the authors', whose linear layer is a convolution of 1 x 1; its channels become pixels."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, mask, pixels = batch["data"], batch["mask"], case.loss.head.pixels
        tokens = model.trunk(images, ["lastPATCH"], mask=mask)[0]
        made = F.pixel_shuffle(pixels(tokens).mT.unflatten(2, (8, 8)), 6)
        hidden = mask.repeat_interleave(6, 1).repeat_interleave(6, 2).unsqueeze(1)
        apart = F.l1_loss(made, images, reduction="none")
        return (apart * hidden).sum() / (hidden.sum() + 1e-5) / 3

    return loss, []


def _data2vec(case: Case) -> ByHand:
    teacher = copy.deepcopy(case.loss.teacher.module)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, mask = batch["data"], batch["mask"].flatten(1)
        with torch.no_grad():
            first, last = teacher.trunk(images, ["blocks.2", "blocks.3"])
            targets = F.layer_norm((first + last) / 2, first.shape[-1:])
        tokens = model.trunk(images, ["lastPATCH"], mask=batch["mask"])[0]
        apart = F.smooth_l1_loss(tokens, targets, reduction="none", beta=2.0).sum(-1)
        return (apart * mask).sum() / mask.sum() / math.sqrt(tokens.shape[-1])

    def follow() -> None:
        by_hand.follow(teacher, case.model, 0.99)
        own, new = (
            [each.trunk.mask_token, *each.trunk.patch_embed.parameters()]
            for each in (teacher, case.model)
        )
        torch._foreach_copy_([each.data for each in own], [each.data for each in new])

    return loss, [follow]


def _msn(case: Case) -> ByHand:
    """As the authors', whose targets are copied for each anchor view; here by one product."""
    options, prototypes = case.loss.options, case.loss.prototypes.weight
    teacher = copy.deepcopy(case.loss.teacher.module)

    def head(network: nn.Module, images: Tensor, **shown: Tensor) -> Tensor:
        return network.head(network.trunk(images, ["lastCLS"], **shown)["lastCLS"])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        rows, student = F.normalize(prototypes), case.loss.student
        with torch.no_grad():
            seen = F.normalize(head(teacher, batch["target_views"])) @ rows.T / options.temperature
            q = F.softmax(seen / options.sharpen, dim=-1)
            for _ in range(3):
                q /= q.sum(dim=0, keepdim=True)
                q /= q.sum(dim=1, keepdim=True)
        anchors = torch.cat([head(student, torch.cat(batch["random_views"]), shown=batch["shown"]),
                             head(student, torch.cat(batch["focal_views"]))])  # fmt: skip
        log_p = F.log_softmax(F.normalize(anchors) @ rows.T / options.temperature, dim=-1)
        p = log_p.exp()
        crossed = -torch.einsum("bk,vbk->", q, log_p.view(-1, *q.shape)) / len(p)
        mean = p.mean(dim=0)
        return crossed + torch.sum(mean * mean.log()) + math.log(len(rows))

    return loss, [lambda: _follow(teacher, case, 0.99)]


def _distillation(case: Case) -> ByHand:
    teacher = case.loss.teachers.teacher.network.trunk
    adaptor = case.loss.adaptors.student.teacher.summary

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch["data"][0])[0]
        made = adaptor(model.trunk(batch["data"][0])[0])
        return 1 - F.cosine_similarity(made, wanted).mean()

    return loss, []


def _ibot(case: Case) -> ByHand:
    """As the authors', whose head scores all patches; here the student's scores the hidden ones."""
    options, teacher = case.loss.options, copy.deepcopy(case.loss.teacher.module)
    centers = [each.center.clone() for each in (case.loss.class_center, case.loss.patch_center)]

    def targets(batch: Batch) -> list[Tensor]:
        images = torch.cat(batch["global_views"])
        tokens = teacher.trunk(images, ["lastCLS", "lastPATCH"])
        scores = [teacher.head(each) for each in tokens.values()]
        hidden = scores[1].flatten(0, 1)[batch["patches_at"]]
        soft = [F.softmax((each - center) / temperature, dim=-1)
                for each, center, temperature in zip(
                    (scores[0], hidden), centers,
                    (options.teacher_temp_max, options.patch_temp_max), strict=True)]  # fmt: skip
        for each, center in zip(scores, centers, strict=True):
            center.mul_(0.9).add_(each.flatten(0, -2).mean(dim=0), alpha=0.1)
        return soft

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = targets(batch)
        return sum(_classes_and_patches(case, batch, wanted))

    return loss, [lambda: _follow(teacher, case, 0.99)]


def _dinov2(case: Case) -> ByHand:
    """As the authors', with Sinkhorn's assignment of scores; KoLeo of each global view."""
    options, teacher = case.loss.options, copy.deepcopy(case.loss.teacher.module)

    def assigned(scores: Tensor, temperature: float) -> Tensor:
        q = torch.exp(scores / temperature)
        q /= q.sum()
        for _ in range(3):
            q /= q.sum(dim=0, keepdim=True) * q.shape[1]
            q /= q.sum(dim=1, keepdim=True) * len(q)
        return q * len(q)

    def spread(rows: Tensor) -> Tensor:
        rows = F.normalize(rows)
        with torch.no_grad():
            nearest = (rows @ rows.T).fill_diagonal_(-1).argmax(dim=1)
        apart = F.pairwise_distance(rows, rows[nearest], eps=1e-8)
        return -(apart + 1e-8).log().mean()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            images = torch.cat(batch["global_views"])
            classes, patches = teacher.trunk(images, ["lastCLS", "lastPATCH"]).values()
            hidden = patches.flatten(0, 1)[batch["patches_at"]]
            wanted = [assigned(teacher.head(classes), options.teacher_temp_max),
                      assigned(teacher.patch_head(hidden), options.patch_temp_max)]  # fmt: skip
        tokens: list[Tensor] = []
        parts = _classes_and_patches(case, batch, wanted, tokens)
        total = sum(parts) + options.koleo_weight * sum(map(spread, tokens[0].chunk(2)))
        return total + gram(tokens[1], batch) if hasattr(case.loss, "gram") else total

    def gram(patches: Tensor, batch: Batch) -> Tensor:
        """DINOv3's, of each image."""
        rows = F.normalize(patches, dim=-1)
        with torch.no_grad():
            images = torch.cat(batch["global_views"])
            wanted = F.normalize(case.loss.gram.trunk(images, ["lastPATCH"])[0], dim=-1)
            wanted = wanted @ wanted.mT
        return options.gram_weight * F.mse_loss(rows @ rows.mT, wanted)

    return loss, [lambda: _follow(teacher, case, options.momentum)]


def _labelled(case: Case) -> ByHand:
    """RotNet and Jigsaw: a classifier, and how many answers were right, as the recipe asks for."""
    totals = torch.zeros(2, dtype=torch.float64)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores, labels = model(batch["data"])[0], batch["label"]
        right = (scores.detach().topk(1).indices == labels.unsqueeze(1)).any(dim=1)
        totals.add_(torch.stack([right.sum(), (labels >= 0).sum()]))
        return F.cross_entropy(scores, labels)

    return loss, []


def _npid(case: Case) -> ByHand:
    """As the paper, with a row written as often as it occurs in a batch."""
    return _with_memory(case, lambda model, batch: [model(batch["data"])[0]])


def _pirl(case: Case) -> ByHand:
    """Both embeddings are compared with the memory; that of the image changes it."""

    def embeddings(model: Any, batch: Batch) -> list[Tensor]:
        images, patches = model({each: batch[each] for each in ("images", "patches")})
        return [images, patches]

    return _with_memory(case, embeddings)


def _with_memory(case: Case, embed: Callable[[nn.Module, Batch], list[Tensor]]) -> ByHand:
    options, memory = case.loss.options, case.loss.memory.clone()
    drawn_for_each = options.negative_sampling_params.num_negatives
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        rows, total = batch["label"], []
        seen[:] = [rows]
        for embedding, weight in zip(embed(model, batch), options.loss_weights, strict=True):
            embedding = F.normalize(embedding)
            positives = (memory[rows] * embedding).sum(dim=1) / options.temperature
            drawn = memory[torch.randint(len(memory), (len(rows), drawn_for_each))]
            negatives = torch.bmm(drawn, embedding.unsqueeze(2)).squeeze(2) / options.temperature
            scores = torch.cat([positives.unsqueeze(1), negatives], dim=1)
            own = torch.zeros(len(scores), dtype=torch.long)
            total.append(weight * F.cross_entropy(scores, own))
            seen.append(embedding.detach())
        return sum(total)

    def move() -> None:
        rows, *embeddings = seen
        which = options.update_mem_with_emb_index
        keep, memory_params = (
            embeddings if which < 0 else [embeddings[which]],
            options.memory_params,
        )
        for embedding in keep:
            moved = memory[rows] * memory_params.momentum + embedding * (1 - memory_params.momentum)
            memory.index_copy_(0, rows, F.normalize(moved))

    return loss, [move]


def _deepclusterv2(case: Case) -> ByHand:
    """As the authors': a cross entropy with each division's clusters, and the memory."""
    method = case.loss
    memory, divisions = method.memory.clone(), range(len(method.options.num_clusters))
    centroids = [method.centroids(each) for each in divisions]
    new: list[Tensor] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        embeddings, rows = F.normalize(model(batch["data"])[0]), batch["label"]
        first, second = embeddings.detach().chunk(2)
        new[:] = [rows[: len(first)], torch.stack([first, second], dim=1)]
        scores = (embeddings @ each.T / method.options.temperature for each in centroids)
        crossed = [F.cross_entropy(each, method.assignments[number][rows], ignore_index=-100)
                   for number, each in enumerate(scores)]  # fmt: skip
        return sum(crossed) / len(crossed)

    return loss, [lambda: memory.index_copy_(0, *new)]


def _follow(teacher: nn.Module, case: Case, momentum: float) -> None:
    student = parameters_with_trunk(case.loss.student)
    torch._foreach_lerp_([*teacher.parameters()], [each.data for each in student], 1 - momentum)


def _classes_and_patches(
    case: Case, batch: Batch, targets: list[Tensor], seen: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    student, options = case.loss.student, case.loss.options
    at, mask = batch["patches_at"], batch["mask"].flatten(1)
    images = torch.cat(batch["global_views"]), ["lastCLS", "lastPATCH"]
    classes, patches = student.trunk(*images, mask=batch["mask"]).values()
    local = student.trunk(torch.cat(batch["local_views"]), ["lastCLS"])["lastCLS"]
    if seen is not None:
        seen += [classes, patches]
    scores = torch.cat([student.head(classes), student.head(local)]) / options.student_temp
    patch_head = student.patch_head or student.head
    of_patches = patch_head(patches.flatten(0, 1)[at]) / options.student_temp
    views = len(batch["global_views"]) + len(batch["local_views"])
    crops = F.log_softmax(scores, dim=-1).view(views, -1, scores.shape[-1])
    pairs = torch.einsum("abk,vbk->av", targets[0].view(2, -1, scores.shape[-1]), crops)
    if (local_weight := getattr(options, "local_weight", 1.0)) != 1.0:
        pairs = torch.cat([pairs[:, :2], local_weight * pairs[:, 2:]], dim=1)
    others = pairs.sum() - pairs[0, 0] - pairs[1, 1]
    shares = (1 / mask.sum(dim=1).clamp(min=1))[at // mask.shape[1]]
    crossed = -(targets[1] * F.log_softmax(of_patches, dim=-1)).sum(dim=-1) * shares
    return -others / (2 * (views - 1) * crops.shape[1]), crossed.sum() / len(mask)


def _off_diagonal(matrix: Tensor) -> Tensor:
    size = len(matrix)
    return matrix.flatten()[:-1].view(size - 1, size + 1)[:, 1:].flatten()


CHANGES = {
    # Which of nearly equal codes is the largest depends on the last bits.
    "swav": ["config.LOSS.swav_loss.temp_hard_assignment_iters=0"],
    "dinov3": ["+config/dinov3=gram"],
}
# (the engine's, by hand), with the torch that constraints/ pins.
GOLDEN = {
    "simclr": (by_hand.simclr, 135, 137),
    "moco": (by_hand.moco, 202, 197),
    "swav": (_swav, 293, 306),
    "dino": (by_hand.dino, 384, 379),
    "ibot": (_ibot, 762, 746),
    "dinov2": (_dinov2, 816, 824),
    "dinov3": (_dinov2, 1162, 1167),
    "barlow_twins": (_barlow_twins, 146, 156),
    "vicreg": (_vicreg, 171, 217),
    "simsiam": (_simsiam, 164, 191),
    "byol": (_byol, 210, 210),
    "mae": (by_hand.mae, 243, 243),
    "data2vec": (_data2vec, 366, 362),
    "simmim": (_simmim, 165, 164),
    "ijepa": (_ijepa, 273, 278),
    "capi": (_capi, 539, 530),
    "msn": (_msn, 608, 595),
    "distillation": (_distillation, 182, 178),
    "clip": (_clip, 173, 169),
    "rotnet": (_labelled, 113, 112),
    "jigsaw": (_labelled, 119, 118),
    "npid": (_npid, 186, 156),
    "npid++": (_npid, 186, 156),
    "pirl": (_pirl, 374, 341),
    "deepclusterv2": (_deepclusterv2, 190, 163),
}
# Methods with a memory look for images that occur twice in a batch, so that the last one is kept on
# any device, and leave out those without a number: up to 35 operations more, of whatever model.
WITH_MEMORY = ("npid", "npid++", "pirl", "deepclusterv2")


# A method that owns its network is itself the step by hand.
OWN_NETWORK = {"densecl", "lejepa", "moco_v3", "nnclr", "ressl", "supcon", "vicregl", "visreg"}


def test_every_quickstart_is_counted() -> None:
    assert GOLDEN.keys() | OWN_NETWORK == set(QUICK)
    for name in OWN_NETWORK:
        assert owns_network(LOSSES.get(name))


@pytest.mark.parametrize("name", slow_but(["simclr", "moco", "dino", "dinov2", "mae"], GOLDEN))
def test_a_step_launches_what_one_by_hand_does(name: str, tmp_path: Path) -> None:
    written, ours, theirs = GOLDEN[name]
    case = Case(name, tmp_path, *CHANGES.get(name, ()))
    expected, _ = case.loss_by_hand(*written(case))
    made = case.of_engine()
    torch.testing.assert_close(case.task.last_batch.loss, expected, rtol=1e-4, atol=1e-5)
    _, bare = case.loss_by_hand(*written(case))
    more = 35 if name in WITH_MEMORY else 0.03 * bare.total()
    assert made.total() <= bare.total() + more, {"more": made - bare, "fewer": bare - made}
    if torch.__version__.startswith("2.14."):
        assert (made.total(), bare.total()) == (ours, theirs)
