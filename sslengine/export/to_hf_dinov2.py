"""`--to hf-dinov2`: a vision transformer as transformers' own Dinov2Model.

Any plain vision transformer with a class token is one: what it lacks of DINOv2 (layer scale,
biases on queries, keys and values) is written as ones, or left out. Tensors have the names of
transformers 4, which version 5 reads as well.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from timm.layers.mlp import GluMlp
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.subject import Subject, plain
from sslengine.export.to_timm import AUTO_MODEL
from sslengine.export.twins import timm_twin

# Of a margin of 3, 7, 11, ... pixels transformers' processors cut off the smaller half, the run
# the even one: no settings make them the same.
_CROPS = """# as the run crops; AutoImageProcessor takes some images a pixel further up or left
"""
_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}

# timm's names within a block, and transformers'.
_IN_BLOCK = (
    (r"^attn\.proj\.", "attention.output.dense."),
    (r"^ls(\d)\.gamma$", r"layer_scale\1.lambda1"),
)
_GATED = ((r"^mlp\.fc1\.", "mlp.weights_in."), (r"^mlp\.fc2\.", "mlp.weights_out."))


def prepare(subject: Subject, license: str) -> Made:
    network = timm_twin(subject).network
    _refuse_others(network)
    config = _config(network, subject)
    crops = _CROPS if subject.preprocessing.crop is not None else ""
    usage = AUTO_MODEL + crops + transform_code(subject)
    return Made(
        partial(_write, network, subject, config),
        usage=usage,
        example=torch_example(subject, ".pooler_output"),
        proofs=(Proof("transformers", usage, "features = model(images).pooler_output"),),
        facts={"architecture": config["architectures"][0]},
    )


def _refuse_others(network: Any) -> None:
    """Raise if the network lacks what is written; what else differs, the proof finds."""
    if not isinstance(network, VisionTransformer):
        raise ExportError("it is a format of vision transformers like timm's vit_small_patch16_224")
    usual = {
        "it has no class token": network.cls_token is not None,
        "its feature is not the class token": network.global_pool == "token",
        "it has a norm before its blocks": isinstance(network.norm_pre, nn.Identity),
        "its norms are not LayerNorm": isinstance(network.norm, nn.LayerNorm),
        "it has no position embeddings": network.pos_embed is not None,
        "its blocks are of another kind": all(type(each) is Block for each in network.blocks),
        "registers have position embeddings": network.no_embed_class or not network.num_reg_tokens,
    }
    if wrong := [text for text, right in usual.items() if not right]:
        raise ExportError(f"transformers' Dinov2Model is another network: {', '.join(wrong)}.")


def _config(network: Any, subject: Subject) -> dict[str, Any]:
    block, registers = network.blocks[0], network.num_reg_tokens
    gated = isinstance(block.mlp, GluMlp)
    kind = ("dinov2_with_registers", "Dinov2WithRegistersModel")
    model_type, architecture = kind if registers else ("dinov2", "Dinov2Model")
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "hidden_size": network.embed_dim,
        "num_hidden_layers": len(network.blocks),
        "num_attention_heads": block.attn.num_heads,
        # A whole number; the width of a gated MLP is made from it in another way.
        "mlp_ratio": 4 if gated else block.mlp.fc1.out_features // network.embed_dim,
        "use_swiglu_ffn": gated,
        "hidden_act": "gelu",
        "layer_norm_eps": network.norm.eps,
        "image_size": subject.images.shape[-1],
        "patch_size": network.patch_embed.patch_size[0],
        "num_channels": subject.channels,
        "qkv_bias": block.attn.qkv.bias is not None,
        **({"num_register_tokens": registers} if registers else {}),
    }


def _write(network: Any, subject: Subject, config: dict[str, Any], folder: Path) -> None:
    side = config["image_size"] // config["patch_size"]
    state = plain(name_tensors(network, side))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    processor = _processor(subject, config["image_size"])
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def name_tensors(network: Any, side: int) -> dict[str, Tensor]:
    """Name the tensors as transformers does, for images of `side` x `side` patches."""
    own = network.state_dict()
    state = {
        "embeddings.cls_token": own["cls_token"],
        "embeddings.mask_token": torch.zeros(1, network.embed_dim),
        "embeddings.position_embeddings": _positions(network, side),
        "embeddings.patch_embeddings.projection.weight": own["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": own["patch_embed.proj.bias"],
        "layernorm.weight": own["norm.weight"],
        "layernorm.bias": own["norm.bias"],
    }
    if network.num_reg_tokens:
        state["embeddings.register_tokens"] = own["reg_token"]
    for number, block in enumerate(network.blocks):
        named = _name_block(block, network.embed_dim)
        state |= {f"encoder.layer.{number}.{name}": each for name, each in named.items()}
    return state


def _positions(network: Any, side: int) -> Tensor:
    """Interpolate them to this grid as timm does; transformers does it in another way."""
    prefix = 0 if network.no_embed_class else 1
    given = resample_abs_pos_embed(
        network.pos_embed.detach(),
        [side, side],
        list(network.patch_embed.grid_size),
        num_prefix_tokens=prefix,
    )
    if prefix:
        return cast(Tensor, given)
    return torch.cat([torch.zeros_like(given[:, :1]), given], dim=1)


def _name_block(block: Any, width: int) -> dict[str, Tensor]:
    renamed = (*_IN_BLOCK, *(_GATED if isinstance(block.mlp, GluMlp) else ()))
    found = {"layer_scale1.lambda1": torch.ones(width), "layer_scale2.lambda1": torch.ones(width)}
    for name, tensor in block.state_dict().items():
        if name.startswith("attn.qkv."):
            kind = name.rpartition(".")[2]
            parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
            found |= {f"attention.attention.{part}.{kind}": each for part, each in parts}
            continue
        for theirs, new in renamed:
            name = re.sub(theirs, new, name)
        found[name] = tensor
    return found


def _processor(subject: Subject, side: int) -> dict[str, Any]:
    given = subject.preprocessing
    resize = given.resize or side
    size = {"shortest_edge": resize} if isinstance(resize, int) else dict(
        zip(("height", "width"), resize, strict=True)
    )  # fmt: skip
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": given.resize is not None,
        "size": size,
        "resample": _RESAMPLE.get(given.interpolation, 2),
        "do_center_crop": given.crop is not None,
        "crop_size": {"height": side, "width": side},
        "do_rescale": subject.has_bytes is not False,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": given.mean,
        "image_std": given.std,
        "do_convert_rgb": subject.image_mode == "RGB",
    }
