"""The figure of docs/two-layer.md: activation patterns, and the gap in eigenvalues that tells them from all others.

OMP_NUM_THREADS=1 python benchmarks/tensor_figure.py         about half a minute; writes docs/tensor-patterns.png
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from exact_targets import Array, asked_as_function, random_network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.tensor.observations import Observations

PAGE = Path(__file__).parents[1] / "docs" / "tensor-patterns.png"
d, h, K, SEED = 100, 64, 10, 0
POINTS = range(7, 17)  # besides the base
SHOWN = 14
# Float64 rounding leaves less than this; zero has no place on a logarithmic axis.
FLOOR = 1e-16
TRUE, OTHER = "#c0392b", "#7f8c8d"


def patterns(count: int) -> tuple[Array, Array]:
    """The column space N×K×r of the differences at Gaussian points, and which unit switched where (N×h)."""
    network = random_network(d, h, K, True, SEED)
    x = 4 * np.random.default_rng([SEED, 4]).standard_normal((count + 1, d))
    answer = asked_as_function(network).oracle(x, gradients=True)
    flat = Observations(x, answer.values, answer.jacobians, Noise(1e-16)).differences().reshape(count * K, -1)
    left, sizes, _ = np.linalg.svd(flat, full_matrices=False)
    rank = int((sizes > 1e-10 * sizes[0]).sum())
    on = x @ network.A.T + network.b > 0
    return left[:, :rank].reshape(count, K, rank), on[1:] != on[0]


def gaps(basis: Array) -> Array:
    """2^N − 1: for every pattern g the smallest eigenvalue of I − U_g U_gᵀ / |g|."""
    N = len(basis)
    projector = np.einsum("nkr,mlr->klnm", basis, basis, optimize=True)
    found = []
    for numbers in np.array_split(np.arange(1, 2**N), max(1, 2**N // 2**14)):
        g = ((numbers[:, None] >> np.arange(N)) & 1).astype(np.float64)
        shown = np.array([[((g @ projector[k, m]) * g).sum(axis=1) for m in range(K)] for k in range(K)])
        found.append(1 - np.linalg.eigvalsh(np.moveaxis(shown, 2, 0) / g.sum(axis=1)[:, None, None])[:, -1])
    result: Array = np.maximum(np.concatenate(found), FLOOR)
    return result


def places(switched: Array) -> Array:
    """Where the patterns of units stand among all, without those of units that never switched."""
    numbers = np.unique((switched.T @ (1 << np.arange(len(switched)))).astype(int))
    result: Array = numbers[numbers > 0] - 1
    return result


def draw_patterns(axes: Axes, switched: Array) -> None:
    extent = (0.5, len(switched) + 0.5, h + 0.5, 0.5)
    axes.imshow(switched.T, aspect="auto", cmap="Greys", interpolation="nearest", extent=extent)
    axes.set(
        xticks=range(2, len(switched) + 1, 2),
        xlabel="point",
        ylabel="hidden unit",
        title="patterns: where each unit\nis not as at the base",
    )


def draw_histogram(axes: Axes, switched: Array, found: Array) -> None:
    true = places(switched)
    bins = np.geomspace(FLOOR, 1, 49).tolist()
    axes.hist(np.delete(found, true), bins, color=OTHER, label=f"{len(found) - len(true):,} others")
    axes.hist(found[true], bins, color=TRUE, label=f"{len(true)} patterns of units")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="smallest eigenvalue",
        title=f"all {len(found):,} patterns\nof {SHOWN} points",
    )
    axes.legend(frameon=False, fontsize=8, loc="upper center")


def draw_growth(axes: Axes, lines: list[tuple[int, float, float]]) -> None:
    count, true, other = (np.array(column) for column in zip(*lines, strict=True))
    axes.plot(count, other, "o-", color=OTHER, label="smallest of all others")
    axes.plot(count, true, "o-", color=TRUE, label="largest of a unit")
    axes.axvline(h / K + 1, color="black", lw=0.8, ls=":")
    axes.annotate("h/K + 1", (h / K + 1, 1e-12), xytext=(10, 0), textcoords="offset points", fontsize=8)
    axes.set(yscale="log", xlabel="points", title=f"the gap opens\n({d}-{h}-{K})")
    axes.legend(frameon=False, fontsize=8, loc="center right")


def main() -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    lines = []
    for count in POINTS:
        basis, switched = patterns(count)
        found, true = gaps(basis), places(switched)
        lines.append((count, float(found[true].max()), float(np.delete(found, true).min())))
        print(*lines[-1], len(true), flush=True)
        if count == SHOWN:
            draw_patterns(left, switched)
            draw_histogram(middle, switched, found)
    draw_growth(right, lines)
    figure.savefig(PAGE, dpi=130)


if __name__ == "__main__":
    main()
