"""VICRegL: VICReg of whole views, and of the places of their feature maps that belong together.

Bardes, Ponce and LeCun, VICRegL: Self-Supervised Learning of Local Visual Features, 2022. VICReg's
terms I, V and C (vicreg.py) weigh 25, 25 and 1, V and C as means over views; over the ordered pairs
of one of the first two views with any other:

    whole   I of the pair; V and C of each view
    local   I, V and C of places and those nearest to them in features, plus
            I, V and C of the `matches` pairs of places that are nearest in the image
    loss    = alpha * whole + (1 - alpha) * local

Local terms are means of both directions, from one view to the other and back; V and C are those of
each place, or of the first of an image's pairs, the second and so on in the order of their places,
over the images of the global batch. Where a place is comes from the crop's `box`, a
field of the batch that RandomResizedCropWithBox makes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.losses.cross_correlation import variance_and_covariance
from sslengine.methods.toolbox import Batch, Method, Step, ViewTrunk, mlp, pass_apart
from sslengine.registry import register_loss


@register_loss("vicregl", several_views=True, images=2)
class VICRegL(Method):
    def __init__(
        self, trunk: ViewTrunk, map: str = "res5", hidden: int = 8192, dim: int = 8192,
        local: int = 512, alpha: float = 0.75, matches: Sequence[int] = (20, 4),
    ) -> None:  # fmt: skip
        """
        map: the trunk's feature map, whose mean is the feature of the whole view.
        hidden, dim, local: widths of the head of whole views, and of that of places.
        alpha: the weight of whole views; the rest is that of places.
        matches: pairs of places that are nearest in the image, from a view to another and back.
        """
        super().__init__()
        self.trunk, self.map, self.alpha, self.matches = trunk, map, alpha, matches
        self.whole = mlp(trunk.width, hidden, hidden, dim, end=nn.Identity())
        self.local = mlp(trunk.width, local, local, local, end=nn.Identity())

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        maps = [self.trunk([view], maps=[self.map])[self.map][0] for view in batch.views]
        grids = [place_cells(box, each) for box, each in zip(batch["box"], maps)]
        cells = [each.flatten(2).mT.unsqueeze(0) for each in maps]  # 1 x images x places x width
        z = pass_apart(self.whole, torch.cat([each.mean(dim=2) for each in cells]))
        places = [self.local(each)[0] for each in cells]
        pairs = [(one, other) for one in (0, 1) for other in range(len(maps)) if one != other]
        whole = 25 * _mean([F.mse_loss(z[one], z[other]) for one, other in pairs]) + spread(z)
        local = _mean([self._local_loss(*(
            (places[number], grids[number]) for number in pair)) for pair in pairs])  # fmt: skip
        loss = self.alpha * whole + (1 - self.alpha) * local
        return {"loss": loss, "whole": whole, "local": local}

    def _local_loss(self, *views: tuple[Tensor, Tensor]) -> Tensor:
        losses = []
        for (one, at), (other, there), count in zip(views, views[::-1], self.matches):
            alike = match_nearest(one, other, one, other)
            near = match_nearest(one, other, at, there, count)
            for rows in (alike, near):
                apart = _mean([spread(each.transpose(0, 1)) for each in rows])
                losses.append(25 * F.mse_loss(*rows) + apart)
        return 2 * _mean(losses)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def spread(views: Tensor) -> Tensor:
    """Return VICReg's variance and covariance terms, weighed, of views x images x width."""
    variance, covariance = variance_and_covariance(views, 1.0, 1e-4)
    return 25 * variance + covariance / len(views)


def place_cells(box: Tensor, feature_map: Tensor) -> Tensor:
    """Return the middles of a map's cells in the image, images x places x (x, y).

    box: left, top, right and bottom of each image's view; left is right of right in a flipped one.
    """
    height, width = feature_map.shape[-2:]
    shares = [(torch.arange(n, device=box.device).to(box) + 0.5) / n for n in (width, height)]
    x, y = (torch.lerp(box[:, n, None], box[:, n + 2, None], each) for n, each in enumerate(shares))
    return torch.stack([x.repeat(1, height), y.repeat_interleave(width, dim=1)], dim=2)


def match_nearest(
    one: Tensor, other: Tensor, at: Tensor, there: Tensor, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return rows of the first, images x rows x width, and to each the row of the other that is
    nearest by positions `at` and `there`. count: of those whose nearest are nearest, in order."""
    with torch.no_grad():
        distances, nearest = torch.cdist(at, there).min(dim=2)
    if count is not None:
        chosen = distances.topk(min(count, one.shape[1]), largest=False).indices.sort().values
        one, nearest = take_rows(one, chosen), nearest.gather(1, chosen)
    return one, take_rows(other, nearest)


def take_rows(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return the rows with these numbers, images x n, of images x rows x width."""
    return rows.gather(1, numbers.unsqueeze(2).expand(-1, -1, rows.shape[2]))
