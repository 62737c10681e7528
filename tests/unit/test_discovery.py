"""Servers of other kinds than KServe's: found out by relumine probe, audited with the file that it writes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import relumine as rl
from relumine.audit.attacks import attacks_for
from relumine.cli import app
from relumine.errors import BadAnswerError, MisuseError, TargetError
from relumine.oracle.http.endpoint import read_endpoint
from relumine.oracle.metering.metered import Metered
from relumine.probe.discovery import proposed
from servers import FilServer, JsonServer, ModelServer, Reply, Seen, served

X, Y = load_iris(return_X_y=True)
MODEL = LogisticRegression(max_iter=1000).fit(X, Y)
NAMES = np.array(["setosa", "versicolor", "virginica"])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("iris.npz", inputs=X, labels=Y)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def root(url: str) -> str:
    return url.removesuffix("/v1/models/net")


class MlflowServer(ModelServer):
    """As mlflow models serve answers."""

    def __init__(self, predict: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(None)
        self.predict = predict

    def answer(self, seen: Seen) -> Reply:
        rows = seen.body["inputs"] if "inputs" in seen.body else seen.body["dataframe_split"]["data"]
        return Reply(body={"predictions": self.predict(np.asarray(rows)).tolist()})


def fil(binary: bool) -> tuple[FilServer, np.ndarray, np.ndarray]:
    import xgboost

    x, y = load_breast_cancer(return_X_y=True) if binary else (X, Y)
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=2, random_state=0).fit(x, y)

    def shap(rows: np.ndarray) -> np.ndarray:
        return model.get_booster().predict(xgboost.DMatrix(rows), pred_contribs=True)

    server = FilServer(model.predict_proba, shap)
    server.dimension = x.shape[1]
    return server, x, y


@pytest.mark.parametrize("binary", [True, False], ids=["two classes", "three classes"])
def test_triton_s_fil_backend_is_audited_with_its_shap_values(binary):
    server, x, y = fil(binary)
    np.savez("data.npz", inputs=x, labels=y)
    with served(server) as url:
        address = f"{root(url)}/v2/models/fil"
        run("probe", address, "--write-config", "fil.toml")
        found = read_endpoint("fil.toml")
        assert (found.input_name, found.values_at, found.gradients_at) == ("input__0", "output__0", "treeshap_output")
        offer = found.offer
        assert (offer.dimension, offer.outputs, offer.contributions) == (x.shape[1], 2 if binary else 3, True)
        assert (offer.values, offer.explained) == ("probabilities", "logits")
        with rl.HttpOracle.at(found) as oracle:
            answer = oracle(x[:5], gradients=True)
        expected = server.shap(x[:5].astype(np.float32)).reshape(5, -1, x.shape[1] + 1)[:, :, :-1]
        np.testing.assert_allclose(answer.jacobians, expected, rtol=1e-6)
        with rl.HttpOracle.at(found, run="attacked") as oracle:
            attack = attacks_for("shap", offer)[0]
            clone = attack(Metered(oracle), 100, seed=0, pool=x[::2])
        assert np.mean(clone.predict(x).argmax(axis=1) == server.predict(x).argmax(axis=1)) > 0.93
        if not binary:
            said = ("--data", "data.npz", "--budget", "10", "--seeds", "1", "--levels", "shap")
            text = run("audit", address, *said, "--run", "kept", "-o", "fil.json")
            assert "SHAP values" in text
            assert read_endpoint("kept/endpoint.toml") == found  # nobody described the server: the audit asked it
            attacks = {one["case"]["attack"] for one in json.loads(Path("fil.json").read_text())["records"]}
            assert attack.key.name in attacks


@pytest.mark.parametrize("pages", [True, False], ids=["with an OpenAPI page", "without"])
@pytest.mark.parametrize("shape", ["a bare list", "objects"])
def test_any_json_service_is_found_out_and_audited(pages, shape):
    def predict(rows: np.ndarray) -> object:
        values = MODEL.predict_proba(rows).tolist()
        return values if shape == "a bare list" else {"results": [{"probability": one} for one in values]}

    with served(JsonServer(predict, "input_series" if pages else "features", pages)) as url:
        address = f"{root(url)}/classify"
        run("probe", address, "--input-shape", "4", "--write-config", "json.toml")
        found = read_endpoint("json.toml")
        assert found.request == {"input_series" if pages else "features": "$rows"}
        assert found.values_at == ("" if shape == "a bare list" else "results[].probability")
        assert (found.offer.outputs, found.offer.values, found.offer.gradients) == (3, "probabilities", "none")
        audit = ("audit", address, "--endpoint-config", "json.toml", "--data", "iris.npz", "--budget", "20")
        run(*audit, "--seeds", "1", "--levels", "probabilities", "-o", "json.json")
        at_once = (*audit[:2], "--input-shape", "4", *audit[4:])
        run(*at_once, "--seeds", "1", "--levels", "probabilities", "--run", "kept", "-o", "at-once.json")
        run(*at_once, "--seeds", "1", "--levels", "probabilities", "--run", "kept", "--resume", "-o", "again.json")
    for name in ("json.json", "at-once.json", "again.json"):
        assert json.loads(Path(name).read_text())["about"]["target_accuracy"] > 0.9


def test_an_audit_that_fails_after_its_preflight_keeps_the_answers_that_were_paid_for():
    asked = []

    def predict(rows: np.ndarray) -> object:
        asked.append(len(rows))
        return MODEL.predict_proba(rows).tolist()

    np.savez("wide.npz", inputs=np.zeros((20, 7)))
    with served(JsonServer(predict, "features", True)) as url:
        audit = ("audit", f"{root(url)}/classify", "--input-shape", "4", "--run", "kept")
        assert CliRunner().invoke(app, [*audit, "--data", "wide.npz"]).exit_code == 2
        assert len(asked) > 0
        assert Path("kept/endpoint.toml").exists()
        before = len(asked)
        again = CliRunner().invoke(app, [*audit, "--data", "missing.npz", "--resume"])
        assert again.exit_code == 2, again.output
        assert len(asked) == before
    assert CliRunner().invoke(app, ["audit", audit[1], "--data", "iris.npz", "--run", "none"]).exit_code != 0
    assert not Path("none").exists()  # nothing was answered


def test_a_service_with_a_field_for_each_feature_is_found_out():
    names = ["sepal length", "sepal.width", "petal_length", "petal_width"]

    class Named(JsonServer):
        def described(self, path: str) -> Reply:
            body = {"content": {"application/json": {"schema": {"properties": {key: {} for key in names}}}}}
            return Reply(body={"paths": {"/classify": {"post": {"requestBody": body}}}})

        def answer(self, seen: Seen) -> Reply:
            if set(seen.body) != set(names):
                return Reply(422, {"detail": "field required"})
            values = MODEL.predict_proba([[seen.body[name] for name in names]])[0]
            return Reply(body=dict(zip(NAMES.tolist(), values.tolist(), strict=True)) | {"probabilities": list(values)})

    with served(Named(None, "", pages=True)) as url:
        address = f"{root(url)}/classify"
        run("probe", address, "--input-shape", "4", "--write-config", "named.toml")
        found = read_endpoint("named.toml")
        assert (found.request, found.columns, found.batch) == ("$record", tuple(names), 1)
        with rl.HttpOracle.at(found) as oracle:
            np.testing.assert_allclose(oracle(X[:5], gradients=False).values, MODEL.predict_proba(X[:5]), atol=1e-6)


@pytest.mark.parametrize("path", [".evil.example/explain", "@evil.example/explain", "/explain?to=evil", 7 * "a"])
def test_a_server_s_page_leads_nowhere_else(path):
    """Its name behind the address of the server would be the name of another one."""

    class Luring(JsonServer):
        def described(self, asked: str) -> Reply:
            fields = {"type": "object", "properties": {f"field {i}": {} for i in range(1000)}}
            body = {"content": {"application/json": {"schema": fields}}}
            return Reply(body={"paths": {"/classify": {"post": {"requestBody": body}}, path: {}, "x": {}}})

    server = Luring(lambda rows: {"error": "none"}, "features", pages=False)
    with served(server) as url, pytest.raises(TargetError, match="none of 34 requests"):
        proposed(f"{root(url)}/classify", (4,))
    assert {seen.path for seen in server.requests} == {"/classify"}


@pytest.mark.parametrize(
    ("shape", "reason"),
    [([-1, 10**9], "at most 4,194,304 numbers"), ([-1, -1, 224], "--input-shape"), ([-1], "-shape")],
)
def test_absurd_metadata_are_refused(shape, reason):
    class Absurd(FilServer):
        def described(self, path: str) -> Reply:
            return Reply(body={"inputs": [{"name": "x", "datatype": "FP32", "shape": shape}]})

    with served(Absurd(None, None)) as url, pytest.raises(TargetError, match=reason):
        proposed(f"{root(url)}/v2/models/fil", None)


def test_a_service_of_single_inputs_with_explanations():
    def predict(row: np.ndarray) -> object:
        if row.shape != (4,):
            return {"error": "one at a time"}
        return {"score": MODEL.decision_function(row[None])[0].tolist(), "attributions": MODEL.coef_.tolist()}

    with served(JsonServer(predict, "x", pages=False)) as url:
        found = proposed(f"{root(url)}/score", (4,))
        assert (found.request, found.batch) == ({"x": "$row"}, 1)
        assert (found.values_at, found.gradients_at, found.offer.gradients) == ("score", "attributions", "all")
        with rl.HttpOracle.at(found) as oracle:
            result = rl.Linear()(oracle, rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    np.testing.assert_allclose(result.predict(X), MODEL.decision_function(X), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("words", [False, True], ids=["numbers", "words"])
def test_labels_of_a_server_are_classes(words):
    def predict(rows: np.ndarray) -> np.ndarray:
        labels = MODEL.predict(10 * rows if rows.min() < 0 else rows)  # random inputs are to reach all classes
        return NAMES[labels] if words else labels

    with served(MlflowServer(predict)) as url:
        found = proposed(f"{root(url)}/invocations", (4,))
        assert (found.protocol, found.offer.values, found.offer.outputs) == ("mlflow", "label", 3)
        assert found.classes == (tuple(NAMES.tolist()) if words else ())
        with rl.HttpOracle.at(found) as oracle:
            np.testing.assert_array_equal(oracle(X, gradients=False).values.argmax(axis=1), MODEL.predict(X))


def test_mlflow_is_sent_inputs_or_a_table_with_columns():
    offer = rl.Offer((4,), 3, values="probabilities", gradients="none")
    server = MlflowServer(MODEL.predict_proba)
    with served(server) as url:
        for columns in ((), ("a", "b", "c", "d")):
            with rl.HttpOracle(f"{root(url)}/invocations", offer=offer, columns=columns) as oracle:
                np.testing.assert_allclose(oracle(X[:9], gradients=False).values, MODEL.predict_proba(X[:9]))
    plain, table = (seen.body for seen in server.requests)
    assert set(plain) == {"inputs"}
    assert table["dataframe_split"]["columns"] == ["a", "b", "c", "d"]


def test_records_are_objects_by_the_names_of_columns():
    offer = rl.Offer((2,), 1, gradients="none")
    request = {"rows": "$records", "options": {"top": 1}}

    class Records(ModelServer):
        def answer(self, seen: Seen) -> Reply:
            return Reply(body={"y": [row["a"] - row["b"] for row in seen.body["rows"]]})

    settings = {"protocol": "json", "request": request, "columns": ("a", "b"), "values_at": "y"}
    with served(Records(None)) as url, rl.HttpOracle(f"{root(url)}/f", offer=offer, **settings) as oracle:
        written = oracle.endpoint.write("records.toml")
        assert read_endpoint(written) == oracle.endpoint
        np.testing.assert_allclose(oracle([[3.0, 1.0], [0.5, 2.0]], gradients=False).values, [[2.0], [-1.5]])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"request": {"x": 1}}, "where the inputs belong, got none"),
        ({"request": {"x": "$rows", "y": "$row"}}, "got \\$rows, \\$row"),
        ({"request": {"x": "$row"}}, "batch = 1"),
        ({"request": {"x": "$records"}}, "say columns"),
        ({"request": {"x": "$rows"}, "columns": ("a",)}, "expected 2 different names"),
        ({}, "expected \\[request\\]"),
    ],
)
def test_descriptions_that_make_no_request_are_refused(said, reason):
    with pytest.raises(MisuseError, match=reason):
        rl.HttpOracle("http://127.0.0.1:1/f", offer=rl.Offer((2,), 1, gradients="none"), protocol="json", **said)


def test_a_label_that_is_not_known_is_named():
    offer = rl.Offer((4,), 3, values="label", gradients="none")
    with (
        served(MlflowServer(lambda rows: NAMES[MODEL.predict(rows)])) as url,
        rl.HttpOracle(f"{root(url)}/invocations", offer=offer) as oracle,
        pytest.raises(BadAnswerError, match="classes = "),
    ):
        oracle(X[:3], gradients=False)


def test_what_nobody_understands_is_said_and_requests_are_few():
    class Deaf(ModelServer):
        def answer(self, seen: Seen) -> Reply:
            return Reply(400, {"error": "no idea"})

    server = Deaf(None)
    with served(server) as url, pytest.raises(TargetError, match=r"Any JSON.*no idea"):
        proposed(f"{root(url)}/f", (4,))
    assert len(server.requests) <= 20
    with served(server) as url, pytest.raises(TargetError, match="--input-shape"):
        proposed(f"{root(url)}/f", None)
