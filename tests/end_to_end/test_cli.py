"""The command line as a person uses it: messages, exit codes, files, interruption and resumption."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import relumine as rl
from relumine.cli import app
from relumine.reconstruct.export import load

ROOT = Path(__file__).parents[2]

TARGETS = """
import time
from pathlib import Path
import numpy as np
import torch
import relumine as rl

def two_layers(outputs=3, hidden=12, bias=True):
    torch.manual_seed(0)
    layers = torch.nn.Linear(10, hidden, bias), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs, bias)
    return torch.nn.Sequential(*layers).double()

def no_biases():
    return two_layers(outputs=1, hidden=6, bias=False)

def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(10, 3).double()

def far_unit():
    module = two_layers()
    module[0].bias.data[0] = -1e8
    return module

class Slow:
    # Writes down every row it is asked, and takes its time.
    def __init__(self):
        self.inside = rl.TorchOracle(two_layers(), input_shape=(10,))
        self.offer = self.inside.offer

    def __call__(self, inputs, *, gradients):
        time.sleep(PAUSE)
        with Path("asked.txt").open("a") as file:
            file.write("row\\n" * len(inputs))
        return self.inside(inputs, gradients=gradients)

def broken():
    def query(x, gradients):
        raise ConnectionError("the line is dead")
    return rl.FunctionOracle(query, rl.Offer((10,), 3))

def faulty():
    class Oracle:
        offer = "not an offer"
        def __call__(self, inputs, *, gradients): ...
    return Oracle()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with targets in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "targets_here", raising=False)
    (tmp_path / "targets_here.py").write_text(TARGETS.replace("PAUSE", "0.05"))
    return tmp_path


def relumine(*arguments: str):
    """What the command says and its exit code; stdout and stderr together in ``output``."""
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def relumine_process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from relumine.cli import main; main()", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("two_layers", ["--method", "auto"]),
        ("two_layers", ["--method", "two-layer"]),
        ("two_layers", ["--method", "values"]),
        ("no_biases", ["--method", "paper", "--hidden", "6"]),
        ("linear", ["--method", "linear"]),
        ("linear", []),
        ("two_layers", ["--gradients", "none"]),
        ("two_layers", ["--values", "probabilities"]),
    ],
)
def test_every_method_recovers_and_writes_a_clone_that_equals_the_target(here, target, options):
    import targets_here

    result = relumine("reconstruct", f"targets_here:{target}", *options, "-o", "clone.safetensors", "-o", "clone.onnx")
    assert result.exit_code == 0, result.output
    assert "RECOVERED" in result.output
    assert "wrote clone.safetensors" in result.output
    assert (here / "clone.onnx").exists()
    clone = load("clone.safetensors")
    values = "probabilities" if "probabilities" in options else "logits"
    oracle = rl.TorchOracle(getattr(targets_here, target)(), input_shape=(10,), values=values)
    points = np.random.default_rng(5).standard_normal((1000, 10))
    np.testing.assert_allclose(clone.predict(points), oracle(points, gradients=False).values, atol=1e-6)


@pytest.mark.parametrize("method", ["auto", "deep"])
def test_a_clone_is_compared_at_the_inputs_of_a_file(here, method):
    np.savez(here / "data.npz", inputs=100 + 3 * np.random.default_rng(0).standard_normal((60, 10)))
    done = relumine("reconstruct", "targets_here:two_layers", "--data", "data.npz", "--method", method)
    assert done.exit_code == 0
    assert "at 60 given inputs, between and around them" in done.output
    wrong = relumine("reconstruct", "targets_here:two_layers", "--data", "nothing.npz")
    assert wrong.exit_code == 2
    assert "nothing.npz: no such file" in wrong.output


def test_auto_books_what_each_step_cost(here):
    output = relumine("reconstruct", "targets_here:two_layers").output
    assert "linear: " in output
    assert "two layers: " in output


def test_a_clone_can_be_the_next_target(here):
    relumine("reconstruct", "targets_here:two_layers", "-o", "clone.safetensors")
    assert relumine("reconstruct", "clone.safetensors", "--method", "two-layer").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Usage"),
        (["reconstruct"], 2, "Missing argument 'TARGET'"),
        (["reconsruct"], 2, "No such command"),
        (["reconstruct", "targets_here:linear", "--method", "magic"], 2, "'auto', 'paper', 'two-layer'"),
        (["reconstruct", "targets_here:linear", "--budget", "0"], 2, "--budget"),
        (["reconstruct", "targets_here:linear", "--seed", "-1"], 2, "--seed"),
        (["reconstruct", "nothing_here:make"], 2, "no module 'nothing_here'"),
        (["reconstruct", "model.pkl"], 2, "is pickled"),
        (["reconstruct", "targets_here:linear", "--input-shape", "a,b"], 2, "such as 784 or 1,28,28"),
        (["reconstruct", "targets_here:linear", "--input-shape", "11"], 2, "with inputs of shape (11,)"),
        (["reconstruct", "targets_here:no_biases", "--method", "paper"], 2, "add --hidden N"),
        (["reconstruct", "targets_here:linear", "--hidden", "3"], 2, "--hidden belongs to --method paper"),
        (["reconstruct", "targets_here:two_layers", "--method", "paper", "--hidden", "3"], 2, "one output"),
        (["reconstruct", "targets_here:linear", "-o", "clone.pkl"], 2, ".safetensors or .onnx"),
        (["reconstruct", "targets_here:linear", "-o", "targets_here.py/clone.onnx"], 2, "cannot write"),
        (["reconstruct", "targets_here:linear", "--run", "targets_here.py"], 2, "cannot open the ledger"),
        (["reconstruct", "targets_here:two_layers", "--method", "linear"], 3, "NOT THIS CLASS"),
        (["reconstruct", "targets_here:two_layers", "--budget", "5"], 3, "BUDGET EXHAUSTED"),
        (["reconstruct", "targets_here:broken"], 3, "ConnectionError: the line is dead"),
        (["reconstruct", "targets_here:faulty"], 1, "internal error"),
        (["demo", "--out", "targets_here.py"], 2, "expected a folder"),
    ],
)
def test_what_goes_wrong_is_said_in_a_message_and_a_code(arguments, code, message):
    result = relumine(*arguments)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_outputs_are_checked_before_anything_is_asked(here):
    assert relumine("reconstruct", "targets_here:Slow", "-o", "clone.pkl").exit_code == 2
    assert not (here / "asked.txt").exists()


def test_nothing_is_written_unless_recovered(here):
    result = relumine("reconstruct", "targets_here:two_layers", "--method", "linear", "-o", "clone.onnx")
    assert "No clone was written" in result.output
    assert not (here / "clone.onnx").exists()


def test_debug_shows_where(here):
    process = relumine_process("reconstruct", "nothing_here:make", "--debug")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" in errors


def test_a_run_folder_belongs_to_its_settings(here):
    arguments = ["reconstruct", "targets_here:two_layers", "--run", "kept"]
    assert relumine(*arguments).exit_code == 0
    assert relumine(*arguments).exit_code == 0
    for other in (["--seed", "1"], ["--method", "values"], ["--gradients", "none"]):
        result = relumine(*arguments, *other)
        assert (result.exit_code, "use the folder of that run" in result.output) == (2, True), result.output


def test_a_run_that_ended_is_shown_again_without_asking(here):
    arguments = ["reconstruct", "targets_here:Slow", "--run", "kept"]
    first = relumine(*arguments)
    asked = (here / "asked.txt").read_text()
    again = relumine(*arguments)
    assert (here / "asked.txt").read_text() == asked
    assert totals(again.output) == totals(first.output)


def test_a_larger_budget_goes_on_where_a_smaller_one_ended(here):
    arguments = ["reconstruct", "targets_here:Slow", "--run", "kept"]
    assert relumine(*arguments, "--budget", "20").exit_code == 3
    whole = relumine(*arguments)
    assert whole.exit_code == 0
    assert len((here / "asked.txt").read_text().splitlines()) == sum(totals(whole.output)[:2])


def totals(output: str) -> list[int]:
    """Gradient queries, value queries and numbers of the closing table."""
    (line,) = (line for line in output.splitlines() if line.strip().startswith("total"))
    return [int(number.replace(",", "")) for number in line.split()[1:]]


def rows_asked(here: Path) -> int:
    path = here / "asked.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def interrupted(here: Path, *options: str) -> subprocess.Popen[str]:
    """A process that is sent Ctrl-C once it has asked some rows."""
    (here / "targets_here.py").write_text(TARGETS.replace("PAUSE", "0.3"))
    process = relumine_process("reconstruct", "targets_here:Slow", "--method", "two-layer", *options)
    deadline = time.monotonic() + 60
    while rows_asked(here) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    return process


def test_ctrl_c_keeps_what_was_paid_and_the_same_command_goes_on(here):
    process = interrupted(here, "--run", "kept")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Interrupted after" in errors
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    kept = len(rl.Ledger(here / "kept" / "ledger.sqlite"))
    paid = rows_asked(here)
    assert kept > 0
    (here / "targets_here.py").write_text(TARGETS.replace("PAUSE", "0"))
    resumed = relumine("reconstruct", "targets_here:Slow", "--method", "two-layer", "--run", "kept")
    assert resumed.exit_code == 0, resumed.output
    # Rows that were on their way when Ctrl-C came are the only ones that may be asked again.
    assert rows_asked(here) - sum(totals(resumed.output)[:2]) == paid - kept


def test_ctrl_c_without_a_run_folder_says_that_nothing_is_kept(here):
    process = interrupted(here)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Nothing is kept; with --run FOLDER every answer is." in errors


def test_help_is_quick_because_nothing_heavy_is_imported():
    program = (
        "import sys; from typer.testing import CliRunner; from relumine.cli import app; "
        "r = [CliRunner().invoke(app, a).exit_code for a in (['--help'], ['reconstruct', '--help'], ['--version'])]; "
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'onnx'} & set(sys.modules); "
        "sys.exit(f'{r} {heavy}' if any(r) or heavy else 0)"
    )
    started = time.monotonic()
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert time.monotonic() - started < 5  # a bound for busy machines; about 0.3 s on an idle one


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option):
    assert relumine(option).output == f"relumine {rl.__version__}\n"


def test_a_module_is_the_command_too(here):
    command = [sys.executable, "-m", "relumine", "reconstruct", "-h"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Usage: python -m relumine reconstruct" in said
    assert "-h, --help" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_RELUMINE_COMPLETE" in relumine("--show-completion", shell).output


def test_json_goes_to_standard_output_and_the_rest_elsewhere(here):
    ended = relumine("reconstruct", "targets_here:two_layers", "--json", "-o", "clone.onnx")
    plain = json.loads(ended.stdout)
    assert (plain["outcome"], plain["hidden"], plain["activation"]) == ("RECOVERED", [12], "relu")
    phases = plain["spent"]["phases"].values()
    assert sum(phase["gradient_queries"] for phase in phases) == plain["spent"]["gradient_queries"] > 0
    assert "wrote clone.onnx" in ended.stderr


def test_quiet_leaves_results_and_verbose_tells_each_step(here):
    assert relumine("reconstruct", "targets_here:two_layers", "-q").stderr == ""
    steps = relumine("reconstruct", "targets_here:two_layers", "-v").stderr
    assert "\nverify: " in steps
    assert "queries asked" in steps


@pytest.mark.parametrize(
    "arguments",
    [
        ["reconstruct", "targets_here:broken", "--run", "new/folder"],
        ["audit", "no-such-file.onnx"],
        ["audit", "targets_here:linear", "--run", "new/folder", "--levels", "smoothgrad", "--gradients", "none"],
        ["audit", "targets_here:linear", "--data", "no-such-file.npz", "-o", "new/folder/report.html"],
    ],
    ids=["oracle", "target", "levels", "data"],
)
def test_a_command_that_fails_leaves_no_folder(here, arguments):
    before = {path.name for path in here.iterdir()}
    assert relumine(*arguments).exit_code in (2, 3)
    assert {path.name for path in here.iterdir()} - {"__pycache__"} == before


def test_messages_speak_of_options(here):
    said = relumine("audit", "targets_here:linear", "--levels", "everything").output
    assert "error: --levels: expected names of label" in said
    said = relumine("audit", "targets_here:linear", "--price", "-1").output
    assert "error: --price: expected a price" in said
    said = relumine("reconstruct", "targets_here:linear", "--input-shape", "11").output
    assert "input_shape" not in said


def test_reconstruct_has_a_budget_of_its_own(here, monkeypatch):
    monkeypatch.setattr(sys.modules["relumine.cli.reconstruct"], "_BUDGET", 5)
    ended = relumine("reconstruct", "targets_here:two_layers")
    assert ended.exit_code == 3
    assert "the budget of 5 queries is spent" in ended.output


@pytest.mark.parametrize("command", [[], ["reconstruct"]])
def test_help_says_whose_models_this_is_for(command):
    assert "own or are allowed to test" in " ".join(relumine(*command, "--help").output.split())


def test_the_reference_page_is_up_to_date():
    command = [sys.executable, "-m", "typer", "relumine.cli", "utils", "docs", "--name", "relumine"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page.strip() == made.strip(), f"write it again: {' '.join(command[1:])} --output docs/cli.md"


def test_a_unit_that_switches_far_out_is_not_overlooked():
    done = relumine("reconstruct", "targets_here:far_unit", "--input-shape", "10", "--method", "two-layer")
    assert (done.exit_code, "RECOVERED" in done.output) == (0, True), done.output
    assert re.search(r"hidden units +12\b", done.output), done.output
