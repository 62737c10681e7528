"""Fitting a student: mini-batches, a rate that falls along a cosine, the best state on held-out answers."""

import json
import os
from copy import deepcopy
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from relumine.errors import DivergedError, MisuseError
from relumine.reconstruct.matching.loss import Matching
from relumine.reconstruct.matching.method import Fitting, GradientMatching
from relumine.reconstruct.matching.optimiser import Muon
from relumine.reconstruct.matching.smoothing import UNTIL, ReluSmoothing

# Held-out answers are looked at, and checkpoints written, this often.
_LOOKS = 20
# A batch norm learns from batches of at least this many inputs; the statistics of fewer are noise.
_ENOUGH = 8
# Its first statistics are taken from this many inputs.
_CALIBRATING, _AT_ONCE = 512, 128
# More held-out answers than this are compared by one random combination of their maps each.
_JUDGED_BY_ALL = 128
# A fitting that diverges begins anew at a fraction of the rate, until it has been tried so often.
_SLOWER, _ATTEMPTS = 4, 6


def fit(
    method: GradientMatching, student: nn.Module, task: Matching, held_out: Tensor, rng: np.random.Generator
) -> float | None:
    """Train ``student`` in place on the answers that are not held out; returns the least loss on those that are."""
    run, checkpoint = _StudentFit(method, student, task, held_out, rng), method.checkpoint and Path(method.checkpoint)
    if checkpoint:
        run.resume(checkpoint)
    every = max(1, method.steps // _LOOKS)
    while run.step < method.steps:
        try:
            loss = run.train_step()
        except _DivergedError:
            run.begin_slower()
            continue
        if run.step % every and run.step < method.steps:
            continue
        validation = run.look()
        if method.watch is not None:
            method.watch(Fitting(run.step, method.steps, loss, validation))
        if checkpoint:
            run.save(checkpoint)
    run.restore_best()
    return run.least


class _DivergedError(Exception):
    """The loss, or a step, is no number any more."""


class _StudentFit:
    """The state of one fitting: all that a killed run needs to go on to the same result."""

    def __init__(
        self,
        method: GradientMatching,
        student: nn.Module,
        task: Matching,
        held_out: Tensor,
        rng: np.random.Generator,
    ) -> None:
        self.method, self.student, self.task, self.held_out, self.rng = method, student, task, held_out, rng
        self.free = np.setdiff1d(np.arange(len(task)), held_out.numpy())
        student.eval()
        self.norms = [layer for layer in student.modules() if isinstance(layer, _BatchNorm)]
        if self.norms and len(task) >= _ENOUGH:
            _calibrate(student, self.norms, task.inputs)
        self.untrained = deepcopy(student.state_dict())
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        """With the untrained student, the slower the more attempts have diverged."""
        self.attempt = attempt
        self.student.load_state_dict(self.untrained)
        self.optimiser = _optimiser(self.student, self.method, _SLOWER**-attempt)
        self.cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, self.method.steps)
        self.step = 0
        self.left = np.empty(0, dtype=np.int64)
        self.least: float | None = None
        self.best: dict[str, Tensor] = {}

    def train_step(self) -> float:
        """One mini-batch; every answer is used once before any is used again."""
        if not len(self.left):
            self.left = self.rng.permutation(self.free)
        rows = torch.from_numpy(self.left[: self.method.batch].copy())
        self.left = self.left[self.method.batch :]
        self.optimiser.zero_grad()
        share = self.step / self.method.steps
        # Then they stand still as in use: only so is an input's gradient its own, whatever else is in the batch.
        self._let_norms_learn(len(rows) >= _ENOUGH and share < UNTIL)
        several = self.task.maps is not None and self.task.explanation.gradients_per_map > 1
        if several and any(norm.training for norm in self.norms):
            # Norms learn from the inputs themselves, not from the points around them at which maps are made.
            with torch.no_grad():
                self.student(self.task.inputs[rows])
            self._let_norms_learn(False)
        with ReluSmoothing.at(share, self.method.relu_smoothing):
            loss = self.task.estimate(self.student, rows, self.rng)
        loss.backward()  # type: ignore[no-untyped-call]
        told = float(loss.item())
        if not np.isfinite(told):
            raise _DivergedError
        try:
            self.optimiser.step()
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise _DivergedError from error
        self.cosine.step()
        self.step += 1
        return told

    def begin_slower(self) -> None:
        """After it diverged; answers of unusual size, or very few, need a lower rate."""
        if self.attempt + 1 == _ATTEMPTS:
            lowest = self.method.learning_rate * _SLOWER**-self.attempt
            raise DivergedError(
                f"fitting diverged at step {self.step}, at a rate of {lowest:.2g} too; lower the learning rate"
            )
        self._begin(self.attempt + 1)

    def _let_norms_learn(self, learn: bool) -> None:
        for norm in self.norms:
            norm.train(learn)

    def look(self) -> float | None:
        """The loss on the held-out answers, keeping the state in which it is least."""
        if not len(self.held_out):
            return None
        self._let_norms_learn(False)
        loss = self._held_out_loss()
        if self.least is None or loss < self.least:
            self.least, self.best = loss, deepcopy(self.student.state_dict())
        return loss

    def _held_out_loss(self) -> float:
        # A generator of its own: looking does not change what comes after, and every look sees the same combinations.
        rng = np.random.default_rng(0)
        judge = self.task.exact if len(self.held_out) <= _JUDGED_BY_ALL else self.task.estimate
        parts = torch.split(self.held_out, _AT_ONCE)
        with torch.no_grad():
            return sum(len(part) * judge(self.student, part, rng).item() for part in parts) / len(self.held_out)

    def restore_best(self) -> None:
        """Back to the state that did best on the held-out answers, if there were any."""
        self._let_norms_learn(False)
        if self.best:
            self.student.load_state_dict(self.best)

    def _about(self) -> str:
        said = self.method
        how = (said.steps, said.batch, said.learning_rate, said.relu_smoothing, said.optimiser)
        return json.dumps([*how, len(self.task), len(self.held_out)])

    def save(self, path: Path) -> None:
        """Write everything, all or nothing."""
        state = {
            "about": self._about(),
            "attempt": self.attempt,
            "student": self.student.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "cosine": self.cosine.state_dict(),
            "step": self.step,
            "left": torch.from_numpy(self.left.copy()),
            "rng": json.dumps(self.rng.bit_generator.state),
            "least": self.least,
            "best": self.best,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        torch.save(state, unfinished)
        os.replace(unfinished, path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same fitting; one that cannot be read is as good as none."""
        try:
            state = torch.load(path, weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError):
            return
        if state["about"] != self._about():
            raise MisuseError(f"checkpoint: {path} belongs to another fitting; remove it, or name another file")
        self._begin(state["attempt"])
        self.student.load_state_dict(state["student"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.cosine.load_state_dict(state["cosine"])
        self.step, self.left = state["step"], state["left"].numpy()
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.least, self.best = state["least"], state["best"]


def _calibrate(student: nn.Module, norms: list[_BatchNorm], inputs: Tensor) -> None:
    """Let batch norms see the asked inputs, from which they know where to start."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all that is seen
        norm.train()
    with torch.no_grad():
        for part in torch.split(inputs[:_CALIBRATING], _AT_ONCE):
            if len(part) >= _ENOUGH:
                student(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    student.eval()


def _optimiser(student: nn.Module, method: GradientMatching, share: float) -> torch.optim.Optimizer:
    """At a share of the method's rate."""
    # Divided by √n for a layer of n inputs, so that one rate suits every width: Adam moves every weight by its rate,
    # whatever the gradient; a sum over n inputs then moves √n to n times as much.
    groups: list[dict[str, Any]] = []
    for layer in student.modules():
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        inputs = max((parameter[0].numel() for parameter in own if parameter.ndim > 1), default=0)
        rate = method.learning_rate * share
        groups += [{"params": [p], "lr": rate / (inputs or p.numel() or 1) ** 0.5} for p in own]
    return Muon(groups) if method.optimiser == "muon" else torch.optim.Adam(groups, fused=True)
