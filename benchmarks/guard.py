"""What the guard costs, and what it saves: an endpoint with and without ``relumine.serve.guard`` in one run.

    python benchmarks/guard.py time --requests 200
    python benchmarks/guard.py inside --requests 20
    python benchmarks/guard.py attack --seeds 1000 1009

``time``: an owner's endpoint (FastAPI, torch, Captum's Saliency of every class; float32) for the zoo's convolutional
network (``conv``) and its network with one hidden layer (``dense``: 784-256-10), bare and with the guard as middleware
(``middleware``) or in a process of its own in front (``proxy``). Bare and guarded are asked the same rows in turn.
``time_ratio`` is that of the medians, ``fast_ratio`` that of the fastest tenth of the
requests, which other work on the machine disturbs least; ``cpu_ratio`` that of the median processor times of all
servers that a request passes, as the kernel's scheduler counts them.
``inside``: the same application called in one process, without HTTP, which costs both the same: processor time of bare
and guarded requests, ten in a row each in turn, which is what a busy machine tells best (``ratio`` of the fastest
requests: other work only adds).
``attack``: reconstruction through the guard, each seed a random network, until it is recovered or the budget is spent.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import relumine as rl
from problems import two_layer
from relumine import zoo
from relumine.jobs.provenance import provenance
from relumine.oracle.http.endpoint import Endpoint
from relumine.serve.budgets import Budgets
from relumine.serve.guard import Guard
from relumine.serve.keys import Keys
from servers import ModelServer, await_ready, free_port, served

OFFER = rl.Offer(inputs=(784,), outputs=10, values="logits", gradients="all", dtype="float32")
PATH = "/v1/models/net"
DEFENCES = ("", "box:0,1", "round:4", "round:4+top")
TIMED = ("", "round:4")
QUESTIONS = {"predict": (1, 16), "explain": (1, 16)}
WARM_UP = 5
BLOCK = 10  # requests in a row to the same form: a server does nothing else all day
ATTACKED = (("", None), ("", 10), ("", 50), ("round:4", None), ("round:4+top", None), ("round:4+top", 200))
ROWS = Path(__file__).parent / "results" / "guard.jsonl"


def module_of(model: str) -> Any:
    import torch
    from torch.nn import Flatten, Sequential, Unflatten

    torch.set_num_threads(1)
    network = {"dense": "two_layer", "conv": "conv"}[model]
    return Sequential(Unflatten(1, (1, 28, 28)), zoo.network(network, (1, 28, 28), 10, 0), Flatten()).eval()


def owners_app(model: str) -> Any:
    """What an owner might run; nothing here is relumine's."""
    import torch
    from captum.attr import Saliency  # type: ignore[import-untyped]
    from fastapi import FastAPI

    module = module_of(model)
    app, saliency = FastAPI(), Saliency(module)

    def rows_of(body: dict[str, list[list[float]]]) -> torch.Tensor:
        return torch.tensor(body["instances"])

    @app.get("/healthz")
    async def alive() -> dict[str, bool]:
        return {"alive": True}

    @app.post(f"{PATH}:predict")
    async def predict(body: dict[str, list[list[float]]]) -> dict[str, Any]:
        with torch.no_grad():
            return {"predictions": module(rows_of(body)).tolist()}

    @app.post(f"{PATH}:explain")
    async def explain(body: dict[str, list[list[float]]]) -> dict[str, Any]:
        x = rows_of(body)
        with torch.no_grad():
            values = module(x)
        maps = [saliency.attribute(x.clone().requires_grad_(), target=k, abs=False) for k in range(10)]
        return {"predictions": values.tolist(), "explanations": torch.stack(maps, dim=1).tolist()}

    return app


def run_app(model: str, port: int, words: str | None, file: str) -> None:
    """Serve the owner's endpoint, guarded if there are words for it."""
    import uvicorn

    app = owners_app(model)
    uvicorn.run(app if words is None else guarded(app, words, file), port=port, log_level="error")


def guarded(app: Any, words: str, file: str | Path) -> Guard:
    keys, budgets = Keys([], budget=10**9), Budgets(file)
    return Guard(app, Endpoint(f"http://127.0.0.1{PATH}", OFFER), defence=words or None, keys=keys, budgets=budgets)


def inside(model: str, requests: int) -> Iterator[dict[str, Any]]:
    """A row for each defence and kind of question."""
    app, rng = owners_app(model), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        forms = {words: guarded(app, words, Path(folder) / "budgets.sqlite") for words in DEFENCES}
        for verb, sizes in QUESTIONS.items():
            for size in sizes:
                used: dict[str | None, list[float]] = {form: [] for form in (None, *forms)}
                for _ in range(requests):
                    content = json.dumps({"instances": rng.random((size, 784)).astype(np.float32).tolist()}).encode()
                    for form in rng.permutation(np.array([None, *forms], dtype=object)):
                        asked = called_often(app if form is None else forms[form], f"{PATH}:{verb}", content)
                        used[form] += asyncio.run(asked)
                fast = {form: min(seconds) for form, seconds in used.items()}  # other work only adds
                for words in forms:
                    about = {"what": "inside", "model": model, "defence": words, "verb": verb, "rows": size}
                    numbers = {"requests": BLOCK * requests, "bare_ms": 1000 * fast[None]}
                    yield about | numbers | {"ratio": fast[words] / fast[None]}


async def called_often(app: Any, path: str, content: bytes) -> list[float]:
    """Seconds of processor time of each request but the first."""
    seconds = []
    for _ in range(1 + BLOCK):
        started = time.thread_time()
        await called(app, path, content)
        seconds.append(time.thread_time() - started)
    return seconds[1:]


async def called(app: Any, path: str, content: bytes) -> None:
    """One request to an ASGI application, as uvicorn hands it over."""
    headers = [(b"host", b"here"), (b"content-type", b"application/json"), (b"accept", b"*/*")]
    headers.append((b"content-length", str(len(content)).encode()))
    asked = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "query_string": b""}
    place = {"path": path, "raw_path": path.encode(), "root_path": "", "client": ("127.0.0.1", 1)}
    status = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        status.append(message.get("status"))

    await app({**asked, **place, "headers": headers}, receive, send)
    assert status[0] == 200


@contextmanager
def running(folder: Path, *arguments: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, cwd=folder)
    try:
        await_ready(process, f"http://127.0.0.1:{port}/healthz", folder, 120)
        yield process
    finally:
        process.kill()
        process.wait()


def cpu(processes: list[subprocess.Popen[bytes]]) -> int:
    """Nanoseconds that all threads have run."""
    tasks = [task for process in processes for task in Path(f"/proc/{process.pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def compare(model: str, requests: int) -> Iterator[dict[str, Any]]:
    """A row for each form, defence and kind of question."""
    me = str(Path(__file__).resolve())
    for words in TIMED:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ports = {form: free_port() for form in ("bare", "middleware", "proxy")}
            bare = stack.enter_context(running(folder, me, "app", model, str(ports["bare"]), port=ports["bare"]))
            inside = stack.enter_context(
                running(folder, me, "app", model, str(ports["middleware"]), "--words", words, port=ports["middleware"])
            )
            options = ["--input-shape", "784", "--outputs", "10", "--budget-per-client", "1000000000"]
            options += ["--budget-file", "proxy.sqlite", "--port", str(ports["proxy"])]
            options += ["--defend", words] if words else []
            behind = f"http://127.0.0.1:{ports['bare']}{PATH}"
            command = ["-m", "relumine", "serve", "--in-front-of", behind, *options]
            front = stack.enter_context(running(folder, *command, port=ports["proxy"]))
            servers = {"bare": [bare], "middleware": [inside], "proxy": [bare, front]}
            for verb, sizes in QUESTIONS.items():
                for size in sizes:
                    for row in timed(verb, size, requests, ports, servers):
                        yield {"what": "time", "model": model, "defence": words} | row


def timed(
    verb: str, size: int, requests: int, ports: dict[str, int], servers: dict[str, list[subprocess.Popen[bytes]]]
) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {form: [] for form in ports}
    used: dict[str, list[int]] = {form: [] for form in ports}
    with httpx.Client(timeout=60, headers={"Content-Type": "application/json"}) as client:
        for i in range(requests + WARM_UP):
            content = json.dumps({"instances": rng.random((size, 784)).astype(np.float32).tolist()})
            for form in rng.permutation(list(ports)):
                before, started = cpu(servers[form]), time.perf_counter()
                reply = client.post(f"http://127.0.0.1:{ports[form]}{PATH}:{verb}", content=content)
                taken = time.perf_counter() - started
                assert reply.status_code == 200, reply.text[:200]
                if i >= WARM_UP:
                    seconds[form].append(taken)
                    used[form].append(cpu(servers[form]) - before)
    bare, fast = statistics.median(seconds["bare"]), np.quantile(seconds["bare"], 0.1)
    for form in ("middleware", "proxy"):
        yield {
            **{"form": form, "verb": verb, "rows": size, "requests": requests},
            "bare_ms": 1000 * bare,
            "time_ratio": statistics.median(seconds[form]) / bare,
            "fast_ratio": np.quantile(seconds[form], 0.1) / fast,
            "cpu_ratio": statistics.median(used[form]) / statistics.median(used["bare"]),
        }


def attacks(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Reconstruction through the guard, by budget and defence, and of the same network without a guard."""
    from starlette.testclient import TestClient

    from relumine.serve.forwarding import Forwarding

    for words, budget in ATTACKED:
        for seed in range(first, last + 1):
            problem = two_layer(20, 16, 3, seed=seed)
            with served(ModelServer(problem.oracle)) as url:
                endpoint = Endpoint(url, problem.offer)
                guard = Guard(
                    Forwarding(endpoint), endpoint, defence=words or None, keys=Keys([], budget=budget), seed=seed
                )
                with TestClient(guard) as client:
                    yield {"what": "attack", "seed": seed, "defence": words, "budget": budget} | attacked(
                        client, guard.endpoint.offer, problem
                    )


def attacked(client: Any, offer: rl.Offer, problem: Any) -> dict[str, Any]:
    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        reply = client.post(f"{PATH}:{'explain' if gradients else 'predict'}", json={"instances": x.tolist()})
        if reply.status_code == 429:
            raise rl.BudgetError(reply.json()["error"])
        body = reply.json()
        return np.array(body["predictions"]), np.array(body["explanations"]) if gradients else None

    result = rl.TwoLayer()(rl.FunctionOracle(query, offer), rng=0)
    x = np.random.default_rng(1).standard_normal((1000, offer.dimension))
    agreement = None
    if result.clone is not None:
        agreement = float((result.predict(x).argmax(axis=1) == problem.predict(x).argmax(axis=1)).mean())
    spent = {"gradients": result.spent.gradient_queries, "values": result.spent.value_queries}
    return {"outcome": result.outcome.name, **spent, "agreement": agreement}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    app = commands.add_parser("app")
    app.add_argument("model")
    app.add_argument("port", type=int)
    app.add_argument("--words")
    timing = commands.add_parser("time")
    timing.add_argument("--requests", type=int, default=200)
    timing.add_argument("--model", choices=("conv", "dense"), default="conv")
    within = commands.add_parser("inside")
    within.add_argument("--requests", type=int, default=20)
    within.add_argument("--model", choices=("conv", "dense"), default="conv")
    commands.add_parser("attack").add_argument("--seeds", type=int, nargs=2, default=(1000, 1009))
    said = parser.parse_args()
    if said.command == "app":
        run_app(said.model, said.port, said.words, "middleware.sqlite")
        return
    if said.command == "attack":
        rows = attacks(*said.seeds)
    else:
        rows = (compare if said.command == "time" else inside)(said.model, said.requests)
    for row in rows:
        print(json.dumps(row), flush=True)
        with ROWS.open("a") as file:
            file.write(json.dumps(row | asdict(provenance(0.0))) + "\n")


if __name__ == "__main__":
    main()
