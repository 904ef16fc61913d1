"""L-BFGS for several smooth convex problems of the same size at once.

All problems share each evaluation, which is one product of matrices for them together: fitting a
classifier for each of many penalties costs little more than fitting one. Each problem has its own
directions and steps, and leaves when it has converged.

The step satisfies the weak Wolfe conditions, found by bisection (Lewis and Overton, Nonsmooth
Optimization via Quasi-Newton Methods, 2013), which convex functions always have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

HISTORY = 10
DECREASE, CURVATURE = 1e-4, 0.9
ROUNDING = 1e-7  # of a value: near the minimum it decreases by less
TRIES = 40  # of a step's length

# (points, which problems) -> values, gradients. Points: problems x variables.
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# (gradients, which problems) -> about their products with the inverse Hessians. With a good one the
# problems need few iterations.
Precondition = Callable[[Tensor, Tensor], Tensor]


class Minimum(NamedTuple):
    points: Tensor
    converged: Tensor
    iterations: int


@torch.no_grad()
def minimise(
    evaluate: Evaluate,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    precondition: Precondition | None = None,
) -> Minimum:
    """A problem has converged when no component of its gradient is above the tolerance."""
    points, active = start.clone(), torch.arange(len(start), device=start.device)
    x = start.clone()
    value, gradient = evaluate(x, active)
    memory = _Memory()
    for iteration in range(max_iterations + 1):
        done = gradient.abs().amax(dim=1) <= tolerance
        points[active] = x
        if done.any() or iteration == max_iterations:
            left = ~done
            active, x, value, gradient = active[left], x[left], value[left], gradient[left]
            memory.keep(left)
        if not len(active) or iteration == max_iterations:
            break
        first = partial(_first, precondition or _identity, active)
        direction = -memory.times(gradient, first)
        unknown = precondition is None and not memory.pairs
        step = _first_step(gradient) if unknown else x.new_ones(len(x))
        new_x, new_value, new_gradient = _line_search(
            evaluate, active, x, value, gradient, direction, step
        )
        memory.add(new_x - x, new_gradient - gradient)
        stuck = (new_x == x).all(dim=1)  # the limit of the number format
        x, value, gradient = new_x, new_value, new_gradient
        gradient[stuck] = 0.0
    converged = torch.ones(len(start), dtype=torch.bool, device=start.device)
    converged[active] = False
    return Minimum(points, converged, iteration)


class _Memory:
    """The last steps and changes of the gradient, of each problem."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor) -> None:
        product = (step * change).sum(dim=1)
        # A pair without curvature has no weight.
        weight = torch.where(product > 0, 1 / product.clamp(min=1e-300), 0.0)
        self.pairs = [*self.pairs[-HISTORY + 1 :], (step, change, weight)]

    def keep(self, problems: Tensor) -> None:
        for place, pair in enumerate(self.pairs):  # one by one: not all of them twice
            step, change, weight = (each[problems] for each in pair)
            self.pairs[place] = step, change, weight

    def times(self, gradient: Tensor, first: Callable[[Tensor], Tensor]) -> Tensor:
        """The product of the inverse Hessian's estimate and the gradient: the two loops.

        first: the product with the estimate before any step.
        """
        if not self.pairs:
            return first(gradient)
        result, factors = gradient.clone(), []
        for step, change, weight in reversed(self.pairs):
            factor = weight * (step * result).sum(dim=1)
            result -= factor.unsqueeze(1) * change
            factors.append(factor)
        step, change, weight = self.pairs[-1]
        norm = (change * first(change)).sum(dim=1)
        scale = torch.where(weight > 0, 1 / (weight * norm).clamp(min=1e-300), 1.0)
        result = first(result) * scale.unsqueeze(1)
        for (step, change, weight), factor in zip(self.pairs, reversed(factors)):
            more = factor - weight * (change * result).sum(dim=1)
            result += more.unsqueeze(1) * step
        return result


def _first(precondition: Precondition, which: Tensor, gradient: Tensor) -> Tensor:
    return precondition(gradient, which)


def _identity(gradient: Tensor, which: Tensor) -> Tensor:
    return gradient


def _first_step(gradient: Tensor) -> Tensor:
    return 1 / gradient.abs().sum(dim=1).clamp(min=1.0)


def _line_search(
    evaluate: Evaluate, active: Tensor, x: Tensor, value: Tensor, gradient: Tensor,
    direction: Tensor, step: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Points, values and gradients after a step of each problem."""
    slope = (gradient * direction).sum(dim=1)
    low, high = torch.zeros_like(step), torch.full_like(step, torch.inf)
    found = x.clone(), value.clone(), gradient.clone()
    search = torch.arange(len(x), device=x.device)
    for _ in range(TRIES):
        tried = x[search] + step[search].unsqueeze(1) * direction[search]
        new = tried, *evaluate(tried, active[search])
        allowed = DECREASE * step[search] * slope[search] + ROUNDING * value[search].abs()
        too_long = ~(new[1] <= value[search] + allowed)
        ahead = (new[2] * direction[search]).sum(dim=1)
        too_short = ~too_long & (ahead < CURVATURE * slope[search])
        better = ~too_long  # kept, also if a longer step is tried
        for kept, each in zip(found, new):
            kept[search[better]] = each[better]
        high[search[too_long]] = step[search[too_long]]
        low[search[too_short]] = step[search[too_short]]
        search = search[too_long | too_short]
        if not len(search):
            break
        middle = (low[search] + high[search]) / 2
        step[search] = torch.where(high[search].isinf(), 2 * low[search], middle)
    return found
