"""Audits of networks trained on MNIST: at all levels here, and through a KServe endpoint.

    RELUMINE_DATA=… python benchmarks/audits.py
    RELUMINE_DATA=… python benchmarks/audits.py --kserve

The second puts each network behind kserve with a Captum explainer, and audits it there and here with the same
settings, for one seed: the verdicts must be the same words, with numbers of queries that differ by 5 % at most, because
a server's float32 sums are not ours. One row per audit is appended to results/audits.jsonl.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import mnist_targets
from relumine.jobs.provenance import provenance
from servers import free_port, program

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "audits.jsonl"
SHAPE = "1,28,28"
BEHIND_KSERVE = ("--levels", "logits,gradients", "--seeds", "1")


def audit(network: str, where: str, target: str, *options: str) -> dict[str, object]:
    """Run one audit as a user would; what it said, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["audit", target, "--input-shape", SHAPE, "--data", "mnist", "--run", folder, *options]
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", "from relumine.cli import main; main()", *command],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
        )
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads((Path(folder) / "result.json").read_text())
    made = provenance(seconds)
    return {
        "network": network,
        "where": where,
        "options": list(options),
        "verdict": result["verdict"],
        "queries": {curve["level"]: _queries(curve) for curve in result["curves"]},
        "agreement": {curve["level"]: _agreement(curve) for curve in result["curves"]},
        "seconds": round(seconds),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "commit": made.commit,
        "versions": dict(made.versions),
    }


def _queries(curve: dict[str, Any]) -> dict[str, float | None]:
    """Until each milestone, mean over seeds."""
    return {need["milestone"]: need["queries"] and need["queries"]["mean"] for need in curve["needs"]}


def _agreement(curve: dict[str, Any]) -> dict[str, list[float]]:
    """At each budget: mean, lowest and highest seed."""
    found = [(point["budget"], point["agreement"]) for point in curve["points"] if point["agreement"]]
    return {str(budget): [round(spread[name], 4) for name in ("mean", "low", "high")] for budget, spread in found}


def behind_kserve(network: str) -> list[dict[str, object]]:
    """The same audit of the network behind a server, and here."""
    module = getattr(mnist_targets, network)()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        traced = torch.jit.trace(module, torch.zeros(2, 1, 28, 28))  # type: ignore[no-untyped-call]
        traced.save(folder / "net.pt")
        url = f"http://127.0.0.1:{port}/v1/models/net"
        server = str(ROOT / "tests" / "kserve_server.py")
        with program(server, str(port), str(folder / "net.pt"), "float32", ready=url, folder=folder, seconds=600):
            there = audit(network, "kserve", url, "--outputs", "10", *BEHIND_KSERVE)
    return [there, audit(network, "here", f"benchmarks.mnist_targets:{network}", *BEHIND_KSERVE)]


def _the_same(first: str, *others: str) -> bool:
    """Whether verdicts have the same words, and numbers that differ by 5 % at most."""
    return all(_words(each) == _words(first) and _close(_numbers(each), _numbers(first)) for each in others)


def _words(verdict: str) -> str:
    return re.sub(r"\d[\d,.]*", "N", verdict)


def _numbers(verdict: str) -> list[float]:
    return [float(number.rstrip(".,").replace(",", "")) for number in re.findall(r"\d[\d,.]*", verdict)]


def _close(some: list[float], others: list[float]) -> bool:
    return all(abs(a - b) <= 0.05 * max(a, b) for a, b in zip(some, others, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["two_layer", "conv"], help="two_layer, conv")
    parser.add_argument("--kserve", action="store_true")
    parser.add_argument("--rows", type=Path, default=RESULTS, help="the file to which rows are appended")
    said = parser.parse_args()
    same = True
    for network in said.networks:
        target = f"benchmarks.mnist_targets:{network}"
        rows = behind_kserve(network) if said.kserve else [audit(network, "here", target)]
        same &= _the_same(*(str(row["verdict"]) for row in rows))
        with said.rows.open("a") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for row in rows:
            print(row["network"], row["where"], f"{row['seconds']} s,", row["verdict"], flush=True)
    print("" if same else "THE VERDICTS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
