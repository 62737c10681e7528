"""The owner's inputs: what is read, and what is refused with a sentence that helps."""

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import relumine as rl
from relumine.audit import data as data_module
from relumine.audit.data import GAUSSIAN, AuditData, gaussian_data, load_data

RNG = np.random.default_rng(0)
INPUTS = RNG.uniform(size=(6, 1, 4, 5)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


class Runs:
    """Executes when it is unpickled."""

    def __reduce__(self):
        return (Path("pickled-code-ran").touch, ())


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def picture(path: Path, size: tuple[int, int] = (5, 4), mode: str = "L", shade: int = 51) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 255)).save(path)


# What is read


def test_an_npz_file_with_labels_and_names(tmp_path):
    read = load_data(npz(tmp_path, inputs=INPUTS, labels=LABELS, class_names=["a", "b", "c"]), (1, 4, 5), 3)
    assert np.array_equal(read.inputs, INPUTS)
    assert np.array_equal(read.labels, LABELS)
    assert read.class_names == ("a", "b", "c")
    assert read.name == "data.npz"
    assert read.given
    assert read.rows.shape == (6, 20)
    assert read.rows.dtype == np.float64
    assert read.deviation == pytest.approx(INPUTS.std(), rel=1e-5)


@pytest.mark.parametrize("stored", [(6, 20), (6, 4, 5), (6, 1, 4, 5), (6, 4, 5, 1)])
def test_inputs_may_be_stored_flat_or_without_a_channel(tmp_path, stored):
    read = load_data(npz(tmp_path, x=INPUTS.reshape(stored)), (1, 4, 5))
    assert np.array_equal(read.inputs, INPUTS)
    assert read.labels is None


def test_channels_last_are_moved_first(tmp_path):
    colours = RNG.uniform(size=(6, 3, 4, 5)).astype(np.float32)
    read = load_data(npz(tmp_path, inputs=np.moveaxis(colours, 1, -1)), (3, 4, 5))
    assert np.array_equal(read.inputs, colours)


def test_a_flat_target_takes_images_row_by_row(tmp_path):
    assert np.array_equal(load_data(npz(tmp_path, inputs=INPUTS), (20,)).inputs, INPUTS.reshape(6, 20))


def test_bytes_become_numbers_from_0_to_1_and_others_stay(tmp_path):
    assert load_data(npz(tmp_path, inputs=np.full((2, 20), 51, np.uint8)), (20,)).inputs.max() == np.float32(0.2)
    assert load_data(npz(tmp_path, inputs=np.full((2, 20), 51)), (20,)).inputs.max() == 51


def test_labels_may_be_words_or_a_column(tmp_path):
    words = load_data(npz(tmp_path, inputs=INPUTS, labels=["no", "yes", "no", "no", "yes", "no"]), (1, 4, 5))
    assert words.class_names == ("no", "yes")
    assert words.labels.tolist() == [0, 1, 0, 0, 1, 0]
    raw = load_data(npz(tmp_path, inputs=INPUTS, labels=[b"no", b"\xff"] * 3), (1, 4, 5))
    assert raw.class_names == ("no", "\ufffd")
    column = load_data(npz(tmp_path, inputs=INPUTS, labels=LABELS[:, None].astype(float)), (1, 4, 5))
    assert np.array_equal(column.labels, LABELS)


def test_a_folder_of_images_by_class(tmp_path):
    for i, name in enumerate(("cat", "dog", "owl")):
        picture(tmp_path / name / "one.png", shade=51 * i)
        picture(tmp_path / name / "two.BMP", shade=51 * i)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    read = load_data(tmp_path, (1, 4, 5))
    assert read.class_names == ("cat", "dog", "owl")
    assert read.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.allclose(read.inputs[:, 0, 0, 0], [0, 0, 0.2, 0.2, 0.4, 0.4])


def test_folders_with_numbers_are_these_classes(tmp_path):
    for name in ("2", "10"):
        picture(tmp_path / name / "one.png")
    read = load_data(tmp_path, (4, 5), 11)
    assert sorted(read.labels.tolist()) == [2, 10]
    assert read.class_names == ()


@pytest.mark.parametrize("shape", [(3, 4, 5), (60,)])
def test_colours_become_planes(tmp_path, shape):
    picture(tmp_path / "one.png", mode="RGB")
    read = load_data(tmp_path, shape)
    assert read.labels is None
    assert read.inputs.shape == (1, *shape)
    assert np.allclose(read.inputs.reshape(3, 20).T, [0.2, 0, 1])


def test_idx_files_with_labels_beside_them(tmp_path):
    images = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS.astype(np.uint8)))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images[:2]))
    for path in (tmp_path, tmp_path / "t10k-images-idx3-ubyte.gz"):
        read = load_data(path, (1, 4, 5))
        assert np.allclose(read.inputs[:, 0] * 255, images)
        assert np.array_equal(read.labels, LABELS)
    assert load_data(tmp_path / "train-images-idx3-ubyte", (4, 5)).labels is None


def test_halves_share_nothing_and_depend_on_the_seed():
    whole = AuditData(np.arange(11, dtype=np.float32)[:, None], np.arange(11), (), "eleven")
    pool, test = whole.halves(1)
    assert (len(pool), len(test)) == (5, 6)
    assert sorted([*pool.labels, *test.labels]) == list(range(11))
    assert np.array_equal(pool.inputs[:, 0], pool.labels)
    assert np.array_equal(whole.halves(1).test.labels, test.labels)
    assert not np.array_equal(whole.halves(2).test.labels, test.labels)


def test_without_data_inputs_are_random_and_say_so():
    made = gaussian_data(rl.Offer((2, 3), 1))
    assert made.name == GAUSSIAN
    assert not made.given
    assert made.shape == (2, 3)
    assert abs(made.deviation - 1) < 0.05
    inside = gaussian_data(rl.Offer((4,), 1, box=(0.0, 1.0)))
    assert inside.inputs.min() >= 0
    assert inside.inputs.max() <= 1


def test_more_inputs_than_needed_are_left_out_together_with_their_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(data_module, "_MOST_INPUTS", 10)
    read = load_data(npz(tmp_path, inputs=np.arange(40.0)[:, None], labels=np.arange(40)), (1,))
    assert len(read) == 10
    assert np.array_equal(read.inputs[:, 0], read.labels)
    for i in range(12):
        picture(tmp_path / "pictures" / f"{i % 2}" / f"{i}.png", shade=i % 2)
    read = load_data(tmp_path / "pictures", (4, 5))
    assert np.allclose(read.inputs[:, 0, 0] * 255, read.labels)
    assert len(read) == 10


# What is refused


def refused(path: Path, match: str, shape: tuple[int, ...] = (1, 4, 5), classes: int | None = None) -> None:
    with pytest.raises(rl.DataError, match=match) as error:
        load_data(path, shape, classes)
    assert str(path.name) in str(error.value)


def test_what_is_not_there(tmp_path):
    refused(tmp_path / "nothing.npz", "no such file or folder; expected an .npz, .npy, .csv or .parquet file")
    (tmp_path / "data.dat").write_text("1,2")
    refused(tmp_path / "data.dat", "expected an .npz, .npy, .csv or .parquet file, a folder of images")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "got none")


def test_pickled_objects_are_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(npz(tmp_path, inputs=np.array([Runs(), Runs()], dtype=object)), "may run any code")
    refused(npz(tmp_path, inputs=INPUTS, labels=np.array([Runs()] * 6, dtype=object)), "may run any code")
    structured = np.zeros(2, dtype=[("inside", object)])
    refused(npz(tmp_path, inputs=structured), "may run any code")
    assert not Path("pickled-code-ran").exists()


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"not a zip file")
    refused(path, "cannot be read as .npz")
    whole = npz(tmp_path, inputs=INPUTS).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "cannot be read as .npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x09\x09" + b"\0" * 100)
    refused(path, "cannot be read as .npz")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00\x20\x00{'descr': os.system('false'), 'f'")
    refused(path, "cannot be read as .npz")


def test_a_header_that_promises_more_than_there_is(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**20, 20)})
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("inputs.npy", header.getvalue())
    refused(tmp_path / "data.npz", "its file is shorter")


def test_what_is_too_big(tmp_path, monkeypatch):
    monkeypatch.setattr(data_module, "_MOST_BYTES", 200)
    refused(npz(tmp_path, inputs=INPUTS), "GiB; save fewer inputs")
    (tmp_path / "images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((60, 4, 5), np.uint8))))
    refused(tmp_path / "images-idx3-ubyte.gz", "save fewer inputs")
    for i in range(11):
        picture(tmp_path / "pictures" / f"{i}.png")
    refused(tmp_path / "pictures", "too many")


def test_arrays_of_other_names(tmp_path):
    refused(npz(tmp_path, features=INPUTS), "expected an array called 'inputs'.*got features")


@pytest.mark.parametrize("shape", [(6, 21), (6, 5, 4), (6, 2, 2, 5), (20,), (), (0, 20)])
def test_inputs_of_another_shape(tmp_path, shape):
    refused(npz(tmp_path, inputs=np.zeros(shape)), "shape")


def test_numbers_that_are_none(tmp_path):
    broken = INPUTS.copy()
    broken[2, 0, 1, 1] = np.nan
    broken[4, 0, 1, 1] = np.inf
    refused(npz(tmp_path, inputs=broken), "NaN or infinity in 2 of 6 inputs")
    refused(npz(tmp_path, inputs=np.full((6, 20), 1e300)), "NaN or infinity")
    refused(npz(tmp_path, inputs=INPUTS.astype(complex)), "numbers, got complex")
    refused(npz(tmp_path, inputs=np.full((6, 20), "1")), "numbers, got")


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([0, 1], "expected 6 labels"),
        (np.eye(6), "expected 6 labels"),
        ([0, 1, 2, 3, 4, -1], "expected labels 0, 1, 2"),
        ([0, 1, 2, 3, 4, 0.5], "expected labels 0, 1, 2"),
        ([0, 1, 2, 0, 1, 3], "tells 3 classes apart, got the label 3"),
    ],
)
def test_labels_that_do_not_fit(tmp_path, labels, match):
    refused(npz(tmp_path, inputs=INPUTS, labels=labels), match, classes=3)


def test_more_names_than_classes(tmp_path):
    refused(npz(tmp_path, inputs=INPUTS, class_names=["a", "b", "c"]), "got 3 class names", classes=2)


def test_labels_of_nan_are_refused_without_a_warning(tmp_path):
    refused(npz(tmp_path, inputs=INPUTS, labels=[0, np.inf, 2, 0, 1, np.nan]), "expected labels")


def test_images_of_another_size_are_not_resized(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", size=(6, 4))
    with pytest.raises(rl.DataError, match=r"b\.png: an image of 6×4 pixels is no input of shape"):
        load_data(tmp_path, (1, 4, 5))


def test_damaged_images_are_named(tmp_path):
    picture(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:40])
    with pytest.raises(rl.DataError, match=r"a\.png: cannot be read as an image"):
        load_data(tmp_path, (1, 4, 5))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n")
    with pytest.raises(rl.DataError, match=r"a\.png: cannot be read as an image"):
        load_data(tmp_path, (1, 4, 5))


def test_a_huge_image_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    picture(tmp_path / "a.png")
    with pytest.raises(rl.DataError, match=r"a\.png: cannot be read as an image .*DecompressionBomb"):
        load_data(tmp_path, (1, 4, 5))


def test_idx_files_that_are_damaged_or_several(tmp_path):
    (tmp_path / "a-images-idx3-ubyte").write_bytes(idx(np.zeros((6, 4, 5), np.uint8))[:-1])
    refused(tmp_path / "a-images-idx3-ubyte", "damaged")
    (tmp_path / "b-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((6, 4, 5), np.uint8)))[:-9])
    refused(tmp_path / "b-images-idx3-ubyte.gz", "cannot be read")
    refused(tmp_path, "name one of them")


def test_one_input_cannot_be_halved(tmp_path):
    with pytest.raises(rl.DataError, match="at least 2 inputs"):
        load_data(npz(tmp_path, inputs=INPUTS[:1]), (1, 4, 5)).halves()
