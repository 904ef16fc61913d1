from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.sections import read
from sslengine.hooks.collapse import LogCollapse
from sslengine.models.build import build_model, build_trunk
from sslengine.models.model import Model
from sslengine.models.options import (
    CompileOptions,
    ModelOptions,
    ResNetOptions,
    TrunkOptions,
)
from sslengine.models.parts import CompiledForward, blocks_of, compile_forward, heads_of, parts_of
from sslengine.models.trunks.library_options import TimmOptions
from tests.config.recipes import resolved
from tests.engine.runs import Watch, make_task, same, train, weights
from tests.engine.sharded import SMALL_VIT, SYNC_BN, assert_close, on_ranks, outcome, run
from tests.integration.test_sharded import ADAM, LOSSES
from tests.ranks import RankPool

EAGER = CompileOptions(USE_COMPILE=True, BACKEND="eager")
COMPILED = {"MODEL__COMPILE": {"USE_COMPILE": True, "BACKEND": "aot_eager"}}
DINO = on_ranks({**SMALL_VIT, **LOSSES["dino"], **ADAM}, 1)
VIT = SMALL_VIT["MODEL__TRUNK"]["VISION_TRANSFORMERS"]
ONE_LAYER = on_ranks(
    {"MODEL__TRUNK": {"NAME": "vision_transformer",
                      "VISION_TRANSFORMERS": {**VIT, "NUM_LAYERS": 1}},
     "MODEL__HEAD__PARAMS": SMALL_VIT["MODEL__HEAD__PARAMS"], "OPTIMIZER__num_epochs": 1},
    1,
)  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


def test_a_copy_computes_with_its_own_weights() -> None:
    net = Net()
    names, images = list(net.state_dict()), torch.randn(4, 3)
    plain = net(images)
    compile_forward(net, EAGER)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.layer.weight.zero_()
        twin.layer.bias.zero_()
    assert torch.equal(net(images), plain)
    assert torch.equal(twin(images), torch.zeros(4, 2))
    assert list(net.state_dict()) == names


def test_hooks_that_come_later_run() -> None:
    net, seen = Net(), []
    compile_forward(net, EAGER)
    net(torch.ones(1, 3))
    handle = net.register_forward_hook(lambda *_: seen.append(1))
    net(torch.ones(1, 3))
    handle.remove()
    net(torch.ones(1, 3))
    assert seen == [1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "timm"])
def test_with_activation_checkpointing(name: str) -> None:
    """Gradients and the statistics of batch norms as without either."""
    options = TrunkOptions(
        NAME=name,
        RESNETS=ResNetOptions(DEPTH=18, BLOCKS=[1, 1, 1, 1], WIDTH_MULTIPLIER=0.0625),
        TIMM=TimmOptions("test_byobnet"),
    )
    torch.manual_seed(0)
    plain = build_trunk(ModelOptions(TRUNK=options)).double()
    other, images = copy.deepcopy(plain), torch.randn(4, 3, 32, 32).double()
    other.checkpoint_activations()
    compile_forward(other, CompileOptions(USE_COMPILE=True, BACKEND="aot_eager"))
    for each in (plain, other):
        each(images)[0].square().sum().backward()
    for ours, theirs in zip(other.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(other.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "changes", [ONE_LAYER, pytest.param(DINO, marks=pytest.mark.slow)], ids=["simclr", "dino"]
)
def test_a_run_and_its_checkpoint(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The same run; names in the state dict as without, so either resumes from the other's."""
    plain, watch = run(tmp_path, changes), Watch()
    one = train(tmp_path, [LogCollapse(), watch], **changes, **COMPILED)
    assert_close(outcome(one, watch), plain, rtol=1e-4, atol=1e-6)
    assert isinstance(one.base_model.trunk.__dict__["forward"], CompiledForward)
    assert "trunk_rank" in one.phase_results
    two = make_task(tmp_path, [LogCollapse()], **changes)
    two.set_classy_state(one.get_classy_state(deep_copy=True))
    assert same(weights(one), weights(two))


@pytest.mark.slow
def test_a_method_that_draws_masks_draws_the_same(tmp_path: Path) -> None:
    """The trunk is compiled, and not what the method draws."""
    vit = {**VIT, "NUM_LAYERS": 1, "HIDDEN_DIM": 16, "NUM_HEADS": 2}
    changes: dict[str, Any] = {
        **ONE_LAYER,
        "MODEL__TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": vit},
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "mae_loss", "decoder_dim": 8, "decoder_layers": 1, "decoder_heads": 2},
    }
    plain, watch = run(tmp_path, changes), Watch()
    one = train(tmp_path, [watch], **changes, **COMPILED)
    assert_close(outcome(one, watch), plain, rtol=1e-4, atol=1e-6)
    assert isinstance(one.base_model.trunk.__dict__["forward"], CompiledForward)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [SMALL_VIT, SYNC_BN],
    ids=["vit", "resnet whose batch norms the ranks share"],
)
def test_over_two_ranks(two_ranks: RankPool, tmp_path: Path, model: dict[str, Any]) -> None:
    changes: dict[str, Any] = {**model, "OPTIMIZER__num_epochs": 1}
    plain = two_ranks.run(run, tmp_path, changes)
    for one, other in zip(
        two_ranks.run(run, tmp_path, {**changes, **COMPILED}), plain, strict=True
    ):
        assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_inductor(tmp_path: Path) -> None:
    from torch._inductor.exc import InductorError

    inductor = {"MODEL__COMPILE": {"USE_COMPILE": True}}
    try:
        compiled = run(tmp_path, {**DINO, **inductor})
    except (InductorError, RuntimeError) as error:
        pytest.skip(f"no compiler: {error}")
    assert_close(compiled, run(tmp_path, DINO), rtol=1e-3, atol=1e-5)


# ---- parts

TRUNKS: dict[str, dict[str, Any]] = {
    "resnet": {},
    "regnet": {"NAME": "regnet", "REGNET": {"name": "anynet", "depths": [1, 2], "widths": [8, 16],
               "group_widths": [4, 4], "bottleneck_multipliers": [1.0, 1.0], "strides": [2, 2]}},
    "convnext": {"NAME": "convnext", "CONVNEXT": {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 8, 16],
                                                  "DROP_PATH_RATE": 0.3}},
    "xcit": {"NAME": "xcit", "XCIT": {"IMAGE_SIZE": 32, "PATCH_SIZE": 8, "HIDDEN_DIM": 16,
             "NUM_LAYERS": 2, "NUM_HEADS": 2, "DROP_PATH_RATE": 0.3, "ETA": 1.0}},
    "swin": {"NAME": "swin_transformer", "SWIN_TRANSFORMER": {"IMAGE_SIZE": 32, "PATCH_SIZE": 4,
             "EMBED_DIM": 8, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2], "WINDOW_SIZE": 4}},
    "convit": {"NAME": "convit", "VISION_TRANSFORMERS": {"IMAGE_SIZE": 32, "PATCH_SIZE": 16,
               "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 16, "MLP_DIM": 32},
               "CONVIT": {"N_GPSA_LAYERS": 1}},
    "efficientnet": {"NAME": "efficientnet", "EFFICIENT_NETS": {"model_version": "B0"}},
    "beit": {"NAME": "beit", "BEIT": {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "NUM_HEADS": 2,
             "HIDDEN_DIM": 16, "QKV_BIAS": True, "USE_REL_POS_BIAS": True, "INIT_VALUES": 0.1,
             "USE_SHARED_REL_POS_BIAS": True, "DROP_PATH_RATE": 0.3}},
    "mobilenet": {"NAME": "mobilenetv3_tv"},
}  # fmt: skip


def _model(trunk: dict[str, Any], heads: list[Any] | None = None) -> Model:
    changes = {"MODEL__TRUNK": trunk} if trunk else {}
    heads = [["mlp", {"dims": [32, 8]}]] if heads is None else heads
    return build_model(read(resolved(**changes, MODEL__HEAD__PARAMS=heads).config, ModelOptions))


@pytest.mark.parametrize(
    ("trunk", "blocks"),
    [("resnet", 8), ("regnet", 3), ("convnext", 4), ("xcit", 4), ("swin", 2), ("convit", 2),
     ("efficientnet", 16), ("beit", 2), ("mobilenet", 17), ("mobilenetv3_timm", 16)],
)  # fmt: skip
def test_the_blocks_of_each_trunk(trunk: str, blocks: int) -> None:
    """They are most of it, and no two of them share anything."""
    whole = _model(TRUNKS.get(trunk, {"NAME": trunk})).trunk
    found = list(blocks_of(whole))
    assert len(found) == blocks
    inside = [id(each) for block in found for each in block.parameters()]
    assert len(inside) == len(set(inside))
    assert sum(p.numel() for b in found for p in b.parameters()) > 0.25 * sum(
        p.numel() for p in whole.parameters()
    )


def test_inner_parts_come_first() -> None:
    model = _model({})
    parts = parts_of(model)
    assert parts[-2:] == [model.trunk, model.heads[0]]
    assert parts[:-2] == list(blocks_of(model.trunk))


def test_small_blocks_stay_with_the_trunk() -> None:
    model = _model({})
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks_of(model.trunk)]
    parts = parts_of(model, smallest_block=max(sizes))
    assert len(parts) == 2 + sizes.count(max(sizes))
    assert parts_of(model, smallest_block=1 + max(sizes)) == [model.trunk, model.heads[0]]


def test_each_module_of_a_chain_is_a_part_and_one_without_weights_is_none() -> None:
    chain = [[["mlp", {"dims": [32, 8]}], ["mlp", {"dims": [8, 4]}]]]
    model = _model({}, chain)
    assert list(heads_of(model)) == list(model.heads[0].children())
    model.heads.append(nn.Identity())
    assert not any(isinstance(each, nn.Identity) for each in parts_of(model))
