"""DINO, all of it in one file (methods/dino.py has the formula)."""

from torch import Tensor, nn

import sslengine as ssl


class DINO(ssl.Method):
    judged_network = "teacher"

    def __init__(
        self, trunk: ssl.ViewTrunk, prototypes: int = 65536, hidden: int = 2048, width: int = 256,
        student_temp: float = 0.1, momentum: float = 0.996,
    ) -> None:  # fmt: skip
        super().__init__()
        head = ssl.DINOHead(trunk.width, [prototypes], hidden_dim=hidden, bottleneck_dim=width)
        self.student = nn.Sequential(trunk, head)
        self.teacher = ssl.EMA(self.student, momentum)
        self.center = ssl.Center(prototypes, 0.9)
        self.student_temp = student_temp

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        temperature = ssl.linear(step, 0.04, 0.07, epochs=30)
        targets = self.center.targets(self.teacher(batch.views[:2]), temperature, step)
        return ssl.cross_view(targets, self.student(batch.views) / self.student_temp)
