"""ReSSL: a strong view resembles earlier images as the teacher says that a weak view does.

Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak Augmentation, 2021. With k the
teacher's embedding of the first, weak view, q the student's of the second, strong view, and Q the
queue of the teacher's earlier embeddings, all of unit length:

    loss = mean over images of - sum softmax(Q k / teacher_temp) log softmax(Q q / student_temp)

After its use the queue takes the step's k.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.methods.toolbox import EMA, Batch, Method, Queue, Step, ViewTrunk, mlp
from sslengine.registry import register_loss


@register_loss("ressl", views=2)
class ReSSL(Method):
    def __init__(
        self, trunk: ViewTrunk, dim: int = 512, hidden: int = 4096, rows: int = 131072,
        student_temp: float = 0.1, teacher_temp: float = 0.04, momentum: float = 0.999,
    ) -> None:  # fmt: skip
        """
        dim, hidden: widths of the embeddings and of the hidden layer.
        rows: the length of the queue.
        student_temp, teacher_temp: similarities are divided by it; the teacher's is the lower.
        momentum: the teacher's, which does not change.
        """
        super().__init__()
        self.student = nn.Sequential(trunk, mlp(trunk.width, hidden, dim, norm=False))
        self.teacher = EMA(self.student, momentum, "constant")
        self.queue, self.temperatures = Queue(rows, dim), (student_temp, teacher_temp)

    def forward(self, batch: Batch, step: Step) -> Tensor:
        weak, strong = batch.views
        (keys,), (queries,) = self.teacher([weak]), self.student([strong])
        keys, queries = F.normalize(keys, dim=-1), F.normalize(queries, dim=-1)
        soft, sharp = self.temperatures
        targets = (keys @ self.queue.rows.T / sharp).softmax(dim=-1)
        loss = F.cross_entropy(queries @ self.queue.rows.T / soft, targets)
        self.queue.push(keys, step)
        return loss
