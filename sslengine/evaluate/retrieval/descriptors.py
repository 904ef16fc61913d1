"""What retrieval does to features before it compares them: GeM pooling and whitening."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, blocks


def gem(tokens: Tensor, p: float = 4.0, eps: float = 1e-6) -> Tensor:
    """Generalised mean over the tokens (B, T, D): (mean of max(x, eps)^p)^(1/p).

    Radenovic et al., Fine-tuning CNN Image Retrieval with No Human Annotation, 2018.
    """
    return tokens.clamp(min=eps).pow(p).mean(dim=1).pow(1 / p)


@dataclass(frozen=True)
class Whitening:
    """The projection on principal components, each divided by its standard deviation."""

    mean: Tensor
    projection: Tensor  # (D, components)

    @classmethod
    def fit(cls, features: Rows, components: int | None = None) -> Whitening:
        """From images other than queries and database. Directions without variance are dropped."""
        mean, covariance = _moments(features)
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
        kept = values > values[0].clamp(min=1e-30) * len(values) * torch.finfo(values.dtype).eps
        if not kept.any():
            raise DataError("Whitening: all features are equal.")
        return cls(mean, vectors[:, kept] / values[kept].sqrt())

    def __call__(self, features: Tensor) -> Tensor:
        kind, device = features.dtype, features.device
        centred = features.flatten(1).double() - self.mean.to(device)
        return (centred @ self.projection.to(device)).to(kind)


def _moments(features: Rows) -> tuple[Tensor, Tensor]:
    """The mean and the covariance, both about the mean, in two passes."""
    if len(features) < 2:
        raise DataError(f"Whitening: needs 2 features or more, got {len(features)}.")
    mean = sum(block.double().sum(dim=0) for block in blocks(features)) / len(features)
    assert isinstance(mean, Tensor)
    centred = (block.double() - mean for block in blocks(features))
    covariance = sum(block.T @ block for block in centred) / len(features)
    assert isinstance(covariance, Tensor)
    return mean, covariance


def as_directions(queries: Tensor, database: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose cosines have the order of the Euclidean distances.

    q . d - |d|^2 / 2 falls as the distance |q - d| grows. It is the product of (q, 1, 0) and
    (d, -|d|^2 / 2, r), with an r that makes all rows of the database equally long.
    """
    halves = database.square().sum(dim=1, keepdim=True) / 2
    rows = torch.cat([database, -halves], dim=1)
    lengths = rows.square().sum(dim=1, keepdim=True)
    rest = (lengths.max() - lengths).clamp(min=0).sqrt()
    one = torch.ones_like(queries[:, :1])
    return torch.cat([queries, one, 0 * one], dim=1), torch.cat([rows, rest], dim=1)
