from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.config.resolve import resolve, resolve_dict
from sslengine.config.sections import read
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine.build import build_base_model, build_loss
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from sslengine.models.options import ModelOptions
from sslengine.models.weights.load import init_method, init_weights
from sslengine.models.weights.state import model_state
from sslengine.optim.learner import learner_of
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import build_param_groups
from tests.config.recipes import recipe
from tests.engine.runs import train
from tests.methods.whole_steps import method_of, parameters_of
from tests.ranks import RankPool

SIDE, PATCH, WIDTH, PAINT = 16, 4, 24, 16
VIT = {
    "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": WIDTH,
    "MLP_DIM": 4 * WIDTH, "QKV_BIAS": True,
}  # fmt: skip
MAE = {"decoder_dim": PAINT, "decoder_layers": 1, "decoder_heads": 2}
CPU = torch.device("cpu")


def of_run(vit: dict[str, Any] | None = None, **mae: Any) -> dict[str, Any]:
    return {
        "MODEL__TRUNK": {
            "NAME": "vision_transformer",
            "VISION_TRANSFORMERS": {**VIT, **(vit or {})},
        },
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "mae_loss", **MAE, **mae},
    }


def make(vit: dict[str, Any] | None = None, **mae: Any) -> Any:
    """In float32, in eval mode."""
    method = method_of(**of_run(vit, **mae)).float().eval()
    method.trunk.trunk.float().eval()
    return method


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def noise(count: int = 3) -> Tensor:
    patches = (SIDE // PATCH) ** 2
    return torch.rand(count, patches, generator=torch.Generator().manual_seed(2))


def loss_of(method: Any, pixels: Tensor, draws: Tensor | None = None) -> Tensor:
    given = {} if draws is None else {"noise": draws}
    loss: Tensor = method(Batch({"input": pixels, **given}), Step.alone())
    return loss


def one_by_one(method: Any, image: Tensor, draw: Tensor, normalise: bool) -> Tensor:
    """The published algorithm for one image, patch by patch."""
    side = SIDE // PATCH
    cut = {
        (row, column): image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
        for row in range(side)
        for column in range(side)
    }  # fmt: skip
    places = sorted(cut, key=lambda place: draw[place[0] * side + place[1]].item())
    kept = places[: round(len(places) * 0.25)]
    trunk, decoder = method.trunk.trunk, method.decoder
    proj = trunk.patch_embed.proj
    tokens = [trunk.cls_token[0, 0]]
    for place in kept:
        embedded = (proj.weight * cut[place]).sum((1, 2, 3)) + proj.bias
        tokens.append(embedded + position(place, WIDTH))
    x = trunk.norm(trunk.blocks(torch.stack(tokens)[None]))[0]
    x = decoder.embed(x)
    row = [x[0]]
    for place in cut:
        at = x[1 + kept.index(place)] if place in kept else decoder.hidden_token[0, 0]
        row.append(at + position(place, PAINT))
    reconstructed = decoder.project(decoder.norm(decoder.blocks(torch.stack(row)[None])))[0, 1:]
    errors = []
    for output, (place, pixels) in zip(reconstructed, cut.items(), strict=True):
        target = pixels.permute(1, 2, 0).flatten()
        if normalise:
            target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
        if place not in kept:
            errors.append((output - target).square().mean())
    return torch.stack(errors).mean()


def position(place: tuple[int, int], width: int) -> Tensor:
    row, column = place
    quarter = width // 4
    angles = [[at / 10_000 ** (i / quarter) for i in range(quarter)] for at in (column, row)]
    values = [wave(angle) for each in angles for wave in (math.sin, math.cos) for angle in each]
    return torch.tensor(values)


@pytest.mark.parametrize("normalise", [True, False])
def test_loss_and_gradients_are_the_published_ones(normalise: bool) -> None:
    method = make(normalize_pixels=normalise)
    loss = loss_of(method, images(), noise())
    trained = {name: each for name, each in parameters_of(method).items() if each.requires_grad}
    ours = torch.autograd.grad(loss, list(trained.values()))
    each = [one_by_one(method, *pair, normalise) for pair in zip(images(), noise(), strict=True)]
    expected = torch.stack(each).mean()
    theirs = torch.autograd.grad(expected, list(trained.values()))
    torch.testing.assert_close(loss, expected)
    for name, one, two in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(
            one, two, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_against_another_implementation() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=4 * WIDTH,
        image_size=SIDE, patch_size=PATCH, decoder_num_attention_heads=2, decoder_hidden_size=PAINT,
        decoder_num_hidden_layers=1, decoder_intermediate_size=4 * PAINT, mask_ratio=0.75,
        norm_pix_loss=True, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = transformers.ViTMAEForPreTraining(config).eval()
    ours = make()
    places = [(row, column) for row in range(SIDE // PATCH) for column in range(SIDE // PATCH)]
    with torch.no_grad():  # it starts with others, or with none
        for embedding in (
            theirs.vit.embeddings.position_embeddings,
            theirs.decoder.decoder_pos_embed,
        ):
            width = embedding.shape[-1]
            embedding[0, 1:] = torch.stack([position(place, width) for place in places])
    _take_weights(ours, theirs)
    output = theirs(images(), noise=noise())
    reconstructed, hidden = ours.reconstruct(images(), noise())
    torch.testing.assert_close(reconstructed, output.logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(hidden, output.mask)
    torch.testing.assert_close(loss_of(ours, images(), noise()), output.loss)


def _take_weights(ours: Any, theirs: Any) -> None:
    state = theirs.state_dict()
    named = {
        "trunk.cls_token": state["vit.embeddings.cls_token"],
        "trunk.pos_embed": state["vit.embeddings.position_embeddings"],
        "decoder.hidden_token": state["decoder.mask_token"],
    }
    pairs = {
        "trunk.patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
        "trunk.norm": "vit.layernorm", "decoder.embed": "decoder.decoder_embed",
        "decoder.norm": "decoder.decoder_norm", "decoder.project": "decoder.decoder_pred",
    }  # fmt: skip
    blocks = {f"trunk.blocks.{i}": f"vit.encoder.layer.{i}" for i in range(2)}
    blocks["decoder.blocks.0"] = "decoder.decoder_layers.0"
    if "vit.layers.0.layernorm_before.weight" in state:
        blocks.update({f"trunk.blocks.{i}": f"vit.layers.{i}" for i in range(2)})
    for mine, yours in blocks.items():
        inner = {
            name.removeprefix(yours + "."): each
            for name, each in state.items()
            if name.startswith(yours + ".")
        }
        for kind in ("weight", "bias"):
            wanted = {part: _one(inner, part, kind) for part in ("q", "k", "v")}
            named[f"{mine}.attn.qkv.{kind}"] = torch.cat(list(wanted.values()))
            for our_part, parts in {
                "norm1": ("layernorm_before",), "norm2": ("layernorm_after",),
                "attn.proj": ("attention.output.dense", "attention.o_proj"),
                "mlp.fc1": ("intermediate.dense", "mlp.fc1"), "mlp.fc2": ("output.dense", "mlp.fc2"),
            }.items():  # fmt: skip
                found = [inner[f"{part}.{kind}"] for part in parts if f"{part}.{kind}" in inner]
                named[f"{mine}.{our_part}.{kind}"] = found[0]
    for mine, yours in pairs.items():
        for kind in ("weight", "bias"):
            named[f"{mine}.{kind}"] = state[f"{yours}.{kind}"]
    for part, module in (("trunk.", ours.trunk.trunk), ("decoder.", ours.decoder)):
        own = {n.removeprefix(part): each for n, each in named.items() if n.startswith(part)}
        module.load_state_dict(own)


def _one(inner: dict[str, Tensor], part: str, kind: str) -> Tensor:
    words = {"q": "query", "k": "key", "v": "value"}
    for name in (f"attention.attention.{words[part]}.{kind}", f"attention.{part}_proj.{kind}"):
        if name in inner:
            return inner[name]
    raise KeyError(f"{part} in {sorted(inner)}")


def test_what_is_hidden_is_never_seen() -> None:
    """Other pixels below the mask change neither what is reconstructed nor its gradient by the rest."""
    model = make()
    reconstructed, hidden = model.reconstruct(images(), noise())
    assert hidden.sum(1).tolist() == [12.0] * 3
    changed = images().clone()
    side = SIDE // PATCH
    away = hidden.view(3, 1, side, side).repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
    changed = torch.where(away.bool(), torch.rand_like(changed), changed)
    assert torch.equal(model.reconstruct(changed, noise())[0], reconstructed)


@pytest.mark.parametrize("training", [True, False])
def test_masks_differ_between_images_and_steps_but_not_between_tests(training: bool) -> None:
    method, seen = make().train(training), []
    for _ in range(2):
        loss_of(method, images())
        seen.append(method._painted[2])
    first, second = seen
    assert torch.equal(first, second) != training
    assert not torch.equal(first[0], first[1])


def test_larger_images_get_positions_of_their_own() -> None:
    method = make()
    loss = loss_of(method, torch.rand(2, 3, 16, 24))
    _, reconstructed, hidden = method._painted
    assert reconstructed.shape == (2, 24, 48)
    assert hidden.sum(1).tolist() == [18.0, 18.0]
    assert math.isfinite(loss.item())


def test_positions_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the host in each step; and they are no part of checkpoints."""
    model = make()
    monkeypatch.setattr("sslengine.models.trunks.patches.sine_positions", None)
    loss_of(model, images())
    rows = model.decoder.positions.table.unflatten(0, (SIDE // PATCH, -1))
    torch.testing.assert_close(rows[2, 3], position((2, 3), PAINT))
    assert not any("positions" in name for name in model.state_dict())


def test_between_the_decoders_blocks_is_float32_under_autocast() -> None:
    """As in the authors' code, where a mask token in float32 is joined to the others."""
    model, seen = make(decoder_layers=3), []
    for module in (*model.decoder.blocks, model.decoder.norm):
        module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.autocast("cpu", torch.bfloat16):
        reconstructed, _ = model.reconstruct(images(), noise())
    assert [each.dtype for each in seen] == [torch.float32] * 4
    assert reconstructed.dtype == torch.bfloat16
    # What a block adds is not rounded to the 8 bits of bfloat16 along the way.
    assert not torch.equal(seen[-1], seen[-1].bfloat16().float())


def test_weight_decay_as_timm_2021_set_it() -> None:
    """None on what has one dimension and on biases; the tokens decay (optim_factory)."""
    config = resolve(["config=quickstart/mae"]).config
    model = build_base_model(config, CPU)
    model = learner_of(model, build_loss(config, model, 1, CPU))
    decayed = {
        id(each)
        for group in build_param_groups(model, read(config, OptimizerOptions))
        if group.get("weight_decay") != 0.0
        for each in group["params"]
    }
    for name, each in model.named_parameters():
        expected = each.requires_grad and each.ndim > 1 and not name.endswith(".bias")
        assert (id(each) in decayed) == expected, name
    assert len(decayed) == 4 * 4 + 1 + 2 * 4 + 1 + 2  # of blocks, patches, tokens, ends


def test_the_picture_shows_input_mask_and_painting() -> None:
    model = make()
    pixels = images()
    perfect = torch.stack([_normalised(patch) for patch in _patches(pixels).flatten(0, 1)])
    hidden = model.reconstruct(pixels, noise())[1]
    model._painted = pixels, perfect.view(3, 16, -1), hidden
    panels = model.picture(3)
    assert panels.shape == (3, 3, 3, SIDE, SIDE)
    torch.testing.assert_close(panels[:, 0], pixels)
    torch.testing.assert_close(panels[:, 2], pixels)  # what is reconstructed perfectly is the image
    shown = _patches(panels[:, 1])[hidden == 0]
    assert torch.equal(shown, _patches(pixels)[hidden == 0])
    away = _patches(panels[:, 1])[hidden == 1]
    assert away.std(1).max() < 1e-6


def _patches(pixels: Tensor) -> Tensor:
    cut = pixels.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
    return cut.permute(0, 2, 3, 4, 5, 1).reshape(len(pixels), -1, PATCH * PATCH * 3)


def _normalised(patch: Tensor) -> Tensor:
    return (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"LOSS\.mae_loss\.decoder_dim"):
        make(decoder_dim=18)
    with pytest.raises(ConfigError, match=r"config\.MODEL\.TRUNK\.NAME"):
        method_of(**{**of_run(), "MODEL__TRUNK": {"NAME": "resnet"}})


def test_without_a_class_token() -> None:
    """What is shown stands at its places, and the features are the mean of the patches."""
    model = make({"USE_CLASS_TOKEN": False})
    reconstructed, hidden = model.reconstruct(images(), noise())
    assert reconstructed.shape == (3, 16, 48)
    tokens = model.trunk(images(), ["lastBLK"])["lastBLK"]
    torch.testing.assert_close(model.trunk(images()), tokens.mean(1))
    swapped = images().flip(0)
    again, also = model.reconstruct(swapped, noise().flip(0))
    torch.testing.assert_close(again, reconstructed.flip(0))
    assert torch.equal(also, hidden.flip(0))


def test_too_few_patches() -> None:
    with pytest.raises(ConfigError, match=r"LOSS\.mae_loss\.mask_ratio"):
        loss_of(make(mask_ratio=0.99), images())


SMALL_RUN: dict[str, Any] = {
    **of_run(),
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": SIDE}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "patch_noise_collator",
    "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": PATCH},
}
EARLIER: dict[str, Any] = {
    **SMALL_RUN,
    "TRAINER__TRAIN_STEP_NAME": "model_train_step", "LOSS": {"name": ""},
    "MODEL__BASE_MODEL_NAME": "mae", "MODEL__mae": {key.upper(): each for key, each in MAE.items()},
    "DATA__TRAIN__INPUT_KEY_NAMES": ["data", "noise"],
}  # fmt: skip


def test_a_model_of_earlier_yaml_is_the_method() -> None:
    assert resolve_dict(recipe(**EARLIER)).config == resolve_dict(recipe(**SMALL_RUN)).config
    given = ["MODEL.BASE_MODEL_NAME=mae", "MODEL.mae.DECODER_DIM=64", "LOSS.name=''",
             "TRAINER.TRAIN_STEP_NAME=model_train_step"]  # fmt: skip
    arguments = ["config=quickstart/simmim", *(f"config.{each}" for each in given)]
    config = resolve(arguments).config
    assert (config.LOSS.name, config.LOSS.mae_loss.decoder_dim) == ("mae_loss", 64)


def test_its_trunk_is_one_like_any(tmp_path: Path) -> None:
    """What training has made of it is read by the model of a trunk with heads."""
    run = train(tmp_path, [], **SMALL_RUN)
    path = tmp_path / "weights.torch"
    torch.save({"classy_state_dict": {"base_model": model_state(run.base_model)}}, path)
    config = resolve_dict(recipe(**{**SMALL_RUN, "LOSS": {"name": "CrossEntropyLoss"}})).config
    chosen, model = read(config, ModelOptions), build_base_model(config, CPU)
    chosen.WEIGHTS_INIT.PARAMS_FILE = str(path)
    init_weights(model, chosen)
    assert torch.equal(model.eval()(images())[0], run.base_model.eval()(images())[0])


def test_an_earlier_checkpoint_fills_the_decoder_too(tmp_path: Path) -> None:
    before, path = make(), tmp_path / "mae.torch"
    decoder = {
        name.replace("project.", "pixels."): each + 1
        for name, each in before.decoder.state_dict().items()
    }
    state = {"trunk": before.trunk.trunk.state_dict(), "decoder": decoder}
    torch.save({"classy_state_dict": {"base_model": {"model": state}, "loss": {}}}, path)
    chosen = read(resolve_dict(recipe(**of_run())).config, ModelOptions)
    chosen.WEIGHTS_INIT.PARAMS_FILE = str(path)
    method = make()
    init_method(method, chosen)
    for name, each in before.decoder.state_dict().items():
        assert torch.equal(method.decoder.state_dict()[name], each + 1), name


class Masks(Hook):
    """Which patches of which image were hidden, step by step."""

    def __init__(self) -> None:
        self.seen: list[dict[int, list[float]]] = []

    def on_step(self, task: Any) -> None:
        if task.train:
            indices, hidden = task.last_batch.indices.tolist(), task.parts.loss._painted[2].tolist()
            self.seen.append(dict(zip(indices, hidden, strict=True)))


def _hidden(folder: Path) -> list[dict[int, list[float]]]:
    masks, batch = Masks(), 4 // world_size()
    changes = {"DATA__TRAIN__BATCHSIZE_PER_REPLICA": batch, "OPTIMIZER__num_epochs": 2}
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": world_size()}
    train(folder / str(rank()), [masks], **{**SMALL_RUN, **changes, **ranks})
    return masks.seen


def test_masks_are_those_of_any_number_of_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    alone = _hidden(tmp_path)
    first, second = two_ranks.run(_hidden, tmp_path)
    assert [one | two for one, two in zip(first, second, strict=True)] == alone
    masks = [tuple(mask) for step in alone for mask in step.values()]
    assert len({*masks}) > 0.9 * len(masks)  # others in each epoch


def test_noise_for_patches_of_another_size() -> None:
    with pytest.raises(
        ConfigError, match=r"config\.DATA\.TRAIN\.COLLATE_FUNCTION_PARAMS\.patch_size"
    ):
        loss_of(make(), images(), noise()[:, :4])


def _share_of_two_ranks(part: Tensor, draws: Tensor) -> tuple[float, Tensor]:
    model = make()
    share = slice(rank() * 2, rank() * 2 + 2)
    wrapped = DistributedDataParallel(Whole(model))
    loss = wrapped(part[share], draws[share])
    loss.backward()
    return loss.item(), model.decoder.project.weight.grad.clone()


class Whole(nn.Module):
    def __init__(self, method: Any) -> None:
        super().__init__()
        self.trunk, self.method = method.trunk.trunk, method

    def forward(self, pixels: Tensor, draws: Tensor) -> Tensor:
        return loss_of(self.method, pixels, draws)


def test_two_ranks_are_one_batch(two_ranks: RankPool) -> None:
    model = make()
    loss = loss_of(model, images(4), noise(4))
    loss.backward()
    steps = two_ranks.run(_share_of_two_ranks, images(4), noise(4))
    assert sum(value for value, _ in steps) / 2 == pytest.approx(loss.item())
    for _, gradient in steps:
        torch.testing.assert_close(gradient, model.decoder.project.weight.grad)
