"""`--to onnx`: model.onnx takes normalised images; model_uint8.onnx bytes, which it normalises."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.program import FeaturesOfBytes, trace_subject, traced
from sslengine.export.subject import IMAGES, Subject
from sslengine.models.weight_file import first_line

TOLERANCE = 1e-4
# Of one file; protocol buffers end at two gigabytes.
_LARGEST = 1.8e9

LOAD = """import onnxruntime
model = onnxruntime.InferenceSession("{folder}/model.onnx")
"""
RUN = """(features,) = model.run(["features"], {"images": images})"""


def prepare(subject: Subject, license: str) -> Made:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"install {' and '.join(missing)} first: pip install 'sslengine[export]'."
        )
    program, free = trace_subject(subject)
    programs, proofs = {"model.onnx": program}, [_proof(LOAD)]
    facts = {"input": f"float32 {list(subject.images.shape)}, normalised", "any_length": free}
    if not subject.preprocessing.besides:
        images = _bytes(subject)
        given = subject.preprocessing
        network = FeaturesOfBytes(subject.trunk, given.mean, given.std)
        programs["model_uint8.onnx"], _ = traced(network, images, (1, 2))
        expected = network(images).detach().numpy()
        load = LOAD.replace("model.onnx", "model_uint8.onnx")
        proofs.append(
            replace(
                _proof(load),
                given=images.numpy(),
                expected=expected,
                compared=f"features of {IMAGES} images of bytes",
            )
        )
        facts["input_uint8"] = f"uint8 {list(images.shape)}, resized and cropped"
    usage = f"{LOAD}# images: {facts['input']}\n{RUN}\n"
    return Made(partial(_write, programs), usage=usage, proofs=tuple(proofs), facts=facts)


def _proof(load: str) -> Proof:
    return Proof("onnxruntime", load, RUN, tolerance=TOLERANCE, torch=False)


def _bytes(subject: Subject) -> torch.Tensor:
    """Images of the view's size, before they are normalised."""
    count, channels, height, width = subject.images.shape
    generator = torch.Generator().manual_seed(0)
    shape = (count, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def _write(programs: dict[str, ExportedProgram], folder: Path) -> None:
    for name, program in programs.items():
        size = sum(each.numel() * each.element_size() for each in program.state_dict.values())
        try:
            with _silent():
                torch.onnx.export(
                    program, (), folder / name, dynamo=True, verbose=False,
                    input_names=["images"], output_names=["features"],
                    external_data=size > _LARGEST,
                )  # fmt: skip
        except Exception as error:  # of torch and of onnx: many kinds
            raise ExportError(f"torch.onnx.export: {first_line(error)}") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the converter's progress and what it recommends."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
