"""Fitting a student: mini-batches, a rate that falls along a cosine, the best state on held-out answers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.reconstruct.matching_loss import Matching


@dataclass(frozen=True)
class Schedule:
    """How long and how fast."""

    steps: int
    batch: int
    learning_rate: float
    weight_decay: float


def fit(
    student: nn.Module,
    task: Matching,
    held_out: Tensor,
    schedule: Schedule,
    rng: np.random.Generator,
    watch: Callable[[int, float, float | None], None],
) -> None:
    """Train ``student`` in place on the answers that are not held out."""
    free = np.setdiff1d(np.arange(len(task)), held_out.numpy())
    optimiser = torch.optim.AdamW(student.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, schedule.steps)
    student.eval()
    left = np.empty(0, dtype=np.int64)
    for step in range(1, schedule.steps + 1):
        if not len(left):
            left = rng.permutation(free)
        rows, left = torch.from_numpy(left[: schedule.batch]), left[schedule.batch :]
        optimiser.zero_grad()
        loss = task.estimate(student, rows, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        cosine.step()
        if step % 20 == 0 or step == schedule.steps:
            if not np.isfinite(loss.item()):
                raise MisuseError(f"fitting diverged at step {step} (loss {loss.item()}); lower the learning rate")
            watch(step, loss.item(), None)
