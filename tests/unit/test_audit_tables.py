"""Tables of inputs: what is read, and what is refused with a sentence that helps."""

import io
import pickle
from pathlib import Path

import numpy as np
import pandas
import pytest

import relumine as rl
from relumine.audit.data import load_data

X = np.random.default_rng(0).standard_normal((40, 3)).round(4)
Y = np.arange(40) % 3
WORDS = np.array(["red", "rosé", "white"])[Y]


def frame(labels: object = None, name: str = "label") -> pandas.DataFrame:
    table = pandas.DataFrame(X, columns=["a", "b", "c"])
    if labels is not None:
        table.insert(1, name, labels)
    return table


def written(folder: Path, table: pandas.DataFrame, ending: str) -> Path:
    path = folder / f"data.{ending}"
    if ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize(("labels", "names"), [(Y, ()), (WORDS, ("red", "rosé", "white"))], ids=["numbers", "words"])
def test_a_table_with_labels(tmp_path, ending, labels, names):
    for column, said in (("label", None), ("Target", None), ("kind of wine", "kind of wine")):
        read = load_data(written(tmp_path, frame(labels, column), ending), (3,), 3, label_column=said)
        assert np.allclose(read.inputs, X)
        assert np.array_equal(read.labels, Y)
        assert read.class_names == names


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_without_labels(tmp_path, ending):
    read = load_data(written(tmp_path, frame(), ending), (3,), 3)
    assert np.allclose(read.inputs, X)
    assert read.labels is None


def test_a_table_without_names_and_with_semicolons(tmp_path):
    path = tmp_path / "data.csv"
    np.savetxt(path, np.column_stack([X, Y]), delimiter=";", fmt="%.4f")
    read = load_data(path, (3,), 3, label_column="3")
    assert np.allclose(read.inputs, X)
    assert np.array_equal(read.labels, Y)


def test_an_npy_file(tmp_path):
    np.save(tmp_path / "data.npy", X)
    assert np.allclose(load_data(tmp_path / "data.npy", (3,)).inputs, X)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_regressors_have_labels_that_are_real_numbers(tmp_path, ending):
    wanted = X.sum(axis=1)
    if ending == "npz":
        path = tmp_path / "data.npz"
        np.savez(path, inputs=X, labels=wanted)
    else:
        path = written(tmp_path, frame(wanted), ending)
    assert np.allclose(load_data(path, (3,), 1, real=True).labels, wanted)
    with pytest.raises(rl.DataError, match="is the target a regressor"):
        load_data(path, (3,), 3)


def test_as_many_numbers_as_classes_stand_for_them_in_order(tmp_path):
    np.savez(tmp_path / "data.npz", inputs=X, labels=np.array([-1, 5, 7])[Y])
    read = load_data(tmp_path / "data.npz", (3,), 3)
    assert np.array_equal(read.labels, Y)
    assert read.class_names == ("-1", "5", "7")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("table", "column", "complaint"),
    [
        (frame(Y), "wine", "--label-column: expected one of a, label, b, c, got 'wine'"),
        (frame(Y, "other"), None, "the target takes 3 features, got 4 columns"),
        (frame(Y).drop(columns="a"), None, "got 2 columns besides 'label'.*add those that are missing"),
        (frame(WORDS, "wine"), None, "expected numbers, the column 'wine' has others"),
        (frame(WORDS).assign(a=np.nan), None, "NaN or infinity in 40 of 40 inputs"),
    ],
    ids=["no such column", "too many", "too few", "words", "missing"],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, ending, table, column, complaint):
    with pytest.raises(rl.DataError, match=complaint):
        load_data(written(tmp_path, table, ending), (3,), 3, label_column=column)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("data.csv", b"", "got none"),
        ("data.csv", b"a,b,c\n1,2\n", "rows of the same length"),
        ("data.csv", b"\xff\xfe\x00", "cannot be read as CSV"),
        ("data.csv", b"a,b,c\n", "expected inputs of shape"),
        ("data.parquet", b"PAR1nonsensePAR1", "cannot be read as Parquet"),
        ("data.parquet", b"", "cannot be read as Parquet"),
        ("data.npy", b"\x93NUMPY", "cannot be read as .npy"),
        ("data.pkl", pickle.dumps([1, 2]), r"may run code when it is read; in your own Python, numpy.savez"),
        ("data.xlsx", b"PK", "save the sheet as CSV"),
        ("data.h5", b"\x89HDF", "read it with its library"),
        ("data.jsonl", b"{}", "DataFrame.to_parquet"),
        ("data.png", b"", "give the folder of images"),
        ("data.dat", b"", "numpy.savez.* writes one"),
    ],
)
def test_other_files_are_refused_with_the_way_to_convert_them(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(rl.DataError, match=complaint):
        load_data(tmp_path / name, (3,), 3)


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    class Runs:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Runs()], dtype=object), allow_pickle=True)
    (tmp_path / "data.npy").write_bytes(buffer.getvalue())
    with pytest.raises(rl.DataError, match="holds Python objects"):
        load_data(tmp_path / "data.npy", (3,))
    assert not (tmp_path / "ran").exists()


def test_a_label_column_belongs_to_a_table(tmp_path):
    np.save(tmp_path / "data.npy", X)
    with pytest.raises(rl.DataError, match="--label-column belongs to a"):
        load_data(tmp_path / "data.npy", (3,), label_column="y")
