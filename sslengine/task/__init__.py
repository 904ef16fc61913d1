"""What a run is: its parts, its progress, its state."""

from sslengine.registry import TASKS

TASKS.declare("sslengine.task.task", "self_supervision_task", "self_supervision_fsdp_task")
