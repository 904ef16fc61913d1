"""Compute in float32, or in half precision by torch's autocast, behind one interface.

with precision.autocast():            # forward and loss
    ...
precision.backward(loss)
precision.unscale(optimizer)          # only before reading gradients
precision.step(optimizer)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn, optim

from sslengine.errors import ConfigError, nearest

CHOICES = ("auto", "fp32", "tf32", "bf16", "fp16")
WITHOUT_FLOAT64 = ("mps",)
_CPU = torch.device("cpu")
_NO_AUTOCAST = nullcontext()


class Precision:
    """torch.autocast where a type is given; with fp16 also a GradScaler.

    Cost: with fp16 the scaler reads on the host whether a gradient overflowed, one
    synchronisation per step, unless the optimizer is fused.
    """

    def __init__(
        self,
        device: torch.device = _CPU,
        dtype: torch.dtype | None = None,
        scaler: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """dtype: float16 or bfloat16; None: single precision. scaler: arguments of GradScaler."""
        self.name = {None: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
        self.mixed = dtype is not None  # do `autocast` and `as_full` change anything?
        self.device, self.dtype = device, dtype
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.name == "fp16", **scaler)
        self._unscaled: set[int] = set()  # optimizers, since the last update

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype) if self.mixed else _NO_AUTOCAST

    def as_full(self, output: Any) -> Any:
        """Convert half-precision tensors of the model's output to float32, for the loss."""
        return as_full(output) if self.mixed else output

    def backward(
        self, loss: Tensor, inputs: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        """Compute gradients of all parameters in the graph, or of `inputs` alone."""
        self.scaler.scale(loss).backward(inputs=inputs, retain_graph=retain_graph)

    def unscale(self, optimizer: optim.Optimizer) -> None:
        """Divide the gradients by the loss scale: once until the next update, whoever asks."""
        if id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: optim.Optimizer) -> None:
        """Step the only optimizer, and adapt the loss scale."""
        self.scaler.step(optimizer)
        self.update()

    def update(self) -> None:
        """Adapt the loss scale, after all optimizers have stepped."""
        self.scaler.update()
        self._unscaled.clear()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


def as_full(output: Any) -> Any:
    """Return the output with its half-precision tensors in float32."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    if isinstance(output, (list, tuple)):
        return type(output)(as_full(each) for each in output)
    if isinstance(output, dict):
        return {key: as_full(each) for key, each in output.items()}
    return output


def build_precision(
    choice: str,
    device: torch.device,
    scaler: Mapping[str, Any] = MappingProxyType({}),
    where: str = "config.MACHINE.PRECISION",
) -> Precision:
    """Build it from one word of CHOICES."""
    choice = best(device) if choice == "auto" else choice
    if choice in ("fp32", "tf32"):
        return Precision()
    on_gpu, on_apple = device.type == "cuda", device.type == "mps"
    if choice not in CHOICES:
        problem = f"expected {', '.join(CHOICES)}; got {choice!r}. {nearest(choice, CHOICES)}"
    elif choice == "fp16" and not on_gpu:
        problem = "fp16 requires a CUDA GPU. Set bf16, or auto."
    elif choice == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        problem = "this GPU does not support bf16. Set fp16, or auto."
    elif choice == "bf16" and on_apple and not torch.backends.mps.is_macos_or_newer(14, 0):
        problem = "bf16 on Apple's GPU requires macOS 14. Set fp32, or auto."
    else:
        return Precision(device, torch.bfloat16 if choice == "bf16" else torch.float16, scaler)
    raise ConfigError(f"{where}: {problem}".rstrip())


def best(device: torch.device) -> str:
    """Choose what `auto` is on a device."""
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def widest(device: torch.device) -> torch.dtype:
    """Return the type in which sums are kept on a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def choose_float64_device(device: torch.device) -> torch.device:
    """Return the device, or the CPU in place of one without float64."""
    return _CPU if device.type in WITHOUT_FLOAT64 else device


def move(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module to the device; its float64 becomes the widest type that the device has."""
    if device.type in WITHOUT_FLOAT64:
        module._apply(lambda each: each.float() if each.dtype == torch.float64 else each)
    return module.to(device)


def set_kernels(choice: str, benchmark: bool, deterministic: bool) -> None:
    """Configure torch's kernels by MACHINE.PRECISION and REPRODUCIBILITY."""
    cudnn = torch.backends.cudnn
    cudnn.deterministic = deterministic
    cudnn.benchmark = benchmark or (choice == "auto" and not deterministic)
    if choice:
        cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = choice != "fp32"


def set_deterministic() -> None:
    """Take deterministic kernels in all of torch. cuBLAS reads its variable at its first use."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
