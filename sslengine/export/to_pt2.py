"""`--to pt2`: a program of torch.export. Its reader needs torch and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.program import trace_subject
from sslengine.export.subject import Subject

LOAD = """import torch
model = torch.export.load("{folder}/model.pt2").module()
"""


def prepare(subject: Subject, license: str) -> Made:
    program, free = trace_subject(subject)
    return Made(
        partial(_write, program),
        usage=LOAD + transform_code(subject),
        example=torch_example(subject),
        proofs=(Proof("torch", LOAD, "features = model(images)"),),
        facts={"input": f"float32 {list(subject.images.shape)}, normalised", "any_length": free},
    )


def _write(program: ExportedProgram, folder: Path) -> None:
    torch.export.save(program, folder / "model.pt2")
