from __future__ import annotations

import pytest
import torch
from torch import nn

from sslengine.contrib.multi_optimizer import only, owned_parameters
from sslengine.errors import ConfigError
from sslengine.optim.learner import learner_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(2, 2)
        self.heads = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        self.token = nn.Parameter(torch.zeros(2))


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def names(patterns: dict[str, list[str]], model: nn.Module | None = None) -> dict[str, list[str]]:
    found = owned_parameters(model or learner_of(Net(), Loss()), patterns, "X")
    return {owner: [each.name for each in its] for owner, its in found.items()}


def test_patterns_choose_by_name_and_may_overlap() -> None:
    assert names(
        {"a": ["trunk.*", "token"], "b": ["heads.1.*", "*.bias"], "c": ["heads.0.weight", "loss.*"]}
    ) == {
        "a": ["token", "trunk.weight", "trunk.bias"],
        "b": ["trunk.bias", "heads.0.bias", "heads.1.weight", "heads.1.bias"],
        "c": ["heads.0.weight", "loss.scale"],
    }


def test_what_is_frozen_needs_no_owner() -> None:
    model = learner_of(Net(), Loss())
    model.heads.requires_grad_(False)
    assert list(names({"a": ["trunk.*"], "b": ["token", "loss.*"]}, model)) == ["a", "b"]
    with pytest.raises(
        ConfigError, match=r"X.b.parameters: all parameters that 'heads.1.\*' matches are froz"
    ):
        names({"a": ["*"], "b": ["heads.1.*"]}, model)


def test_a_part_of_the_model_called_loss() -> None:
    model = Net()
    model.loss = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="submodule 'loss'"):
        learner_of(model, Loss())


def test_only_some_are_trainable_for_a_while() -> None:
    model = learner_of(Net(), Loss())
    model.trunk.bias.requires_grad_(False)
    mine = owned_parameters(model, {"a": ["trunk.*"], "b": ["*"]}, "X")["a"]
    with only(model, mine):
        assert [n for n, p in model.named_parameters() if p.requires_grad] == ["trunk.weight"]
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen == ["trunk.bias"]
