"""A run to be killed: ``python asks_slowly.py LEDGER RECEIPTS ANSWERS`` asks 120 questions through a ledger.

Each row that reaches the target leaves a receipt (a line in RECEIPTS) before it is answered; the answers, if the run
gets that far, end in ANSWERS.
"""

import os
import sys
import time

import numpy as np

import relumine as rl

ledger_path, receipts_path, answers_path = sys.argv[1:]
receipts = os.open(receipts_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def target(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
    for row in x:
        os.write(receipts, (row.tobytes().hex() + "\n").encode())
    time.sleep(0.002)
    return np.sin(x).sum(axis=1, keepdims=True), np.cos(x)[:, None] if gradients else None


metered = rl.Metered(
    rl.FunctionOracle(target, rl.Offer(inputs=(3,), outputs=1)), ledger=rl.Ledger(ledger_path), budget=10_000
)
rng = np.random.default_rng(0)
answers = []
print("asking", flush=True)
for i in range(120):
    x = rng.standard_normal((1 + i % 3, 3))
    if answers:
        x += answers[-1].values[0]  # what is asked depends on what was answered
    answers.append(metered(x, gradients=i % 2 == 0))
np.savez(
    answers_path,
    values=np.concatenate([answer.values for answer in answers]),
    gradients=np.concatenate([answer.jacobians for answer in answers[::2]]),
    spent=[metered.spent.value_queries, metered.spent.gradient_queries],
)
