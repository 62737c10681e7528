"""Reading, finding, downloading and splitting data: small imitations of the published files stand for them."""

import gzip
import hashlib
import http.server
import io
import lzma
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace

import numpy as np
import pytest

import relumine as rl
from relumine import zoo
from relumine.zoo import files, sources

RNG = np.random.default_rng(0)
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def python2_batch(images, labels):
    """A batch as Python 2 pickled it: byte strings, and numpy's names of that time."""
    raw = images.tobytes()

    def text(value):
        return b"U" + bytes([len(value)]) + value

    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"J" + struct.pack("<i", len(images)) + b"J" + struct.pack("<i", images[0].size) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}("
        + text(b"data")
        + array
        + state
        + text(b"labels")
        + numbers
        + text(b"batch_label")
        + text(b"x")
        + b"u."
    )


def random_images(count, *shape):
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8), RNG.integers(0, 10, count, dtype=np.uint8)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data folder, an empty cache."""
    monkeypatch.delenv("RELUMINE_DATA", raising=False)
    monkeypatch.setenv("RELUMINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mnist(monkeypatch):
    """A small MNIST: its files by name, and a Layout that knows their checksums and no mirrors."""
    train, test = random_images(60, 28, 28), random_images(10, 28, 28)
    arrays = {
        "train-images-idx3-ubyte": train[0],
        "train-labels-idx1-ubyte": train[1],
        "t10k-images-idx3-ubyte": test[0],
        "t10k-labels-idx1-ubyte": test[1],
    }
    plain = {name: idx_bytes(array) for name, array in arrays.items()}
    packed = {f"{name}.gz": gzip.compress(data) for name, data in plain.items()}
    layout = replace(
        sources.MNIST,
        files={name: hashlib.sha1(data).hexdigest() for name, data in plain.items()},
        mirrors=(),
    )
    monkeypatch.setattr(sources, "MNIST", layout)
    return arrays, plain, packed


@pytest.fixture
def cifar(monkeypatch):
    """A small CIFAR10: images and labels per batch, and the files of both of its forms."""
    batches = [random_images(4, 3, 32, 32) for _ in range(6)]
    binary = {
        name: np.column_stack([labels, images.reshape(4, -1)]).tobytes()
        for name, (images, labels) in zip(sources.CIFAR10_BINARY.files, batches, strict=True)
    }
    python = {
        name: python2_batch(images, labels)
        for name, (images, labels) in zip(sources.CIFAR10_PYTHON.files, batches, strict=True)
    }
    for name, contents in (("CIFAR10_BINARY", binary), ("CIFAR10_PYTHON", python)):
        layout = getattr(sources, name)
        checksums = {file: hashlib.sha1(data).hexdigest() for file, data in contents.items()}
        monkeypatch.setattr(sources, name, replace(layout, files=checksums, mirrors=()))
    return batches, binary, python


def write(folder, contents, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / f"{name}{ending}").write_bytes(PACK[ending](data))


def tar(contents):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"some-folder/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def same_images(inputs, images):
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(np.rint(inputs * 255).astype(np.uint8).ravel(), images.ravel())


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_mnist_is_found_through_the_environment(mnist, monkeypatch, tmp_path, ending, folder):
    arrays, plain, _ = mnist
    write(tmp_path / "data" / folder, plain, ending)
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path / "data"))
    data = zoo.dataset("mnist")
    assert data.shape == (1, 28, 28)
    assert (len(data.train), len(data.test), data.classes) == (60, 10, 10)
    same_images(data.train.inputs, arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert data.train.inputs.min() >= 0
    assert data.train.inputs.max() <= 1


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("ending", [*PACK, ".tar.gz"])
def test_cifar10_is_found_in_all_its_forms(cifar, monkeypatch, tmp_path, form, ending):
    batches, binary, python = cifar
    contents = binary if form == "binary" else python
    if ending == ".tar.gz":
        (tmp_path / f"cifar-10-{form}.tar.gz").write_bytes(tar(contents))
    else:
        write(tmp_path / "cifar10", contents, ending)
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path))
    data = zoo.dataset("cifar10")
    assert data.shape == (3, 32, 32)
    same_images(data.train.inputs, np.concatenate([images for images, _ in batches[:5]]))
    same_images(data.test.inputs, batches[5][0])
    np.testing.assert_array_equal(data.train.labels, np.concatenate([labels for _, labels in batches[:5]]))


def test_pickles_of_todays_python_are_read_too():
    images, labels = random_images(3, 3, 32, 32)
    batch = pickle.dumps({"data": images.reshape(3, -1), "labels": labels.tolist()}, protocol=2)
    read = files.cifar_python(batch, "batch")
    np.testing.assert_array_equal(read[0], images)
    np.testing.assert_array_equal(read[1], labels)


class Touch:
    """Creates a file when it is unpickled in the usual way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_pickle_is_executed(tmp_path):
    harmful = pickle.dumps({"data": Touch(tmp_path / "harm"), "labels": []})
    with pytest.raises(rl.DataError, match="refused to load"):
        files.cifar_python(harmful, "batch")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": b"", "labels": []}),
        pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}, protocol=2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, protocol=2),
        pickle.dumps({"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]}, protocol=2),
        python2_batch(*random_images(2, 3, 32, 32))[:-3000],
    ],
)
def test_pickles_of_something_else_are_refused(batch):
    with pytest.raises(rl.DataError, match="batch"):
        files.cifar_python(batch, "batch")


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (files.idx, b"", "idx file"),
        (files.idx, b"\x1f\x8b\x08\x00", "idx file"),
        (files.idx, b"\0\0\x08\x03\0\0", "truncated"),
        (files.idx, idx_bytes(np.zeros((3, 4), np.uint8))[:-1], "damaged"),
        (files.idx, idx_bytes(np.zeros((3, 4), np.uint8)) + b"0", "damaged"),
        (files.cifar_binary, b"", "3073"),
        (files.cifar_binary, bytes(3072), "3073"),
    ],
)
def test_damaged_files_are_named(read, data, message):
    with pytest.raises(rl.DataError, match=f"file-name.*{message}"):
        read(data, "file-name")


@pytest.mark.parametrize("ending", PACK)
def test_truncated_and_altered_files_are_refused(mnist, monkeypatch, tmp_path, ending):
    _, plain, _ = mnist
    write(tmp_path / "mnist", plain, ending)
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path))
    damaged = tmp_path / "mnist" / f"train-images-idx3-ubyte{ending}"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(rl.DataError, match=r"train-images-idx3-ubyte.*replace it"):
        zoo.dataset("mnist")
    altered = bytearray(plain["train-images-idx3-ubyte"])
    altered[100] ^= 1
    damaged.write_bytes(PACK[ending](bytes(altered)))
    with pytest.raises(rl.DataError, match=r"train-images-idx3-ubyte.*expected checksum"):
        zoo.dataset("mnist")


def test_truncated_and_incomplete_archives_are_refused(cifar, monkeypatch, tmp_path):
    _, binary, _ = cifar
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path))
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(tar(binary)[:-5000])
    with pytest.raises(rl.DataError, match="truncated or damaged"):
        zoo.dataset("cifar10")
    del binary["test_batch.bin"]
    archive.write_bytes(tar(binary))
    with pytest.raises(rl.DataError, match=r"missing test_batch\.bin"):
        zoo.dataset("cifar10")


def test_without_data_and_network_the_error_says_what_to_do(mnist, tmp_path):
    with pytest.raises(rl.DataError, match="RELUMINE_DATA") as caught:
        zoo.dataset("mnist")
    assert "train-images-idx3-ubyte" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_data_folder_that_is_none_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(rl.DataError, match="expected a folder"):
        zoo.dataset("mnist")


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files`` (path to bytes) on this machine and remembers what was asked."""

    def __init__(self, served):
        self.served, self.asked = served, []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        data = self.server.served.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        # A connection that breaks off: the length is promised and not kept.
        self.wfile.write((data or b"")[:100] if self.path.startswith("/broken/") else data or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(served):
        server = Server(served)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def with_mirrors(monkeypatch, name, *mirrors):
    monkeypatch.setattr(sources, name, replace(getattr(sources, name), mirrors=mirrors))


def test_downloads_try_every_mirror_and_are_kept(mnist, monkeypatch, serve, tmp_path):
    arrays, _, packed = mnist
    served = {f"/good/{name}": data for name, data in packed.items()}
    served |= {f"/altered/{name}": b"X" + data for name, data in packed.items()}
    served |= {f"/broken/{name}": data for name, data in packed.items()}
    server = serve(served)
    mirrors = [f"{server.url}{place}/" for place in ("missing", "altered", "broken", "good")]
    with_mirrors(monkeypatch, "MNIST", "http://127.0.0.1:9/", *mirrors)
    same_images(zoo.dataset("mnist").train.inputs, arrays["train-images-idx3-ubyte"])
    assert {path.name for path in (tmp_path / "cache" / "data" / "mnist").iterdir()} == {*packed}
    asked = len(server.asked)
    zoo.dataset("mnist")
    assert len(server.asked) == asked


def test_a_failed_download_leaves_nothing_and_names_every_mirror(mnist, monkeypatch, serve, tmp_path):
    _, plain, _ = mnist
    server = serve({f"/altered/{name}.gz": gzip.compress(b"X" + data) for name, data in plain.items()})
    with_mirrors(monkeypatch, "MNIST", f"{server.url}missing/", f"{server.url}altered/")
    with pytest.raises(rl.DataError, match=r"missing/train-images.*Not Found.*altered/train-images.*checksum"):
        zoo.dataset("mnist")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_cifar10_is_downloaded_in_the_form_that_can_be_had(cifar, monkeypatch, serve):
    batches, _, python = cifar
    server = serve({"/cifar-10-python.tar.gz": tar(python)})
    with_mirrors(monkeypatch, "CIFAR10_PYTHON", server.url)
    with_mirrors(monkeypatch, "CIFAR10_BINARY", server.url)
    same_images(zoo.dataset("cifar10").test.inputs, batches[5][0])


def test_digits_come_with_the_package():
    data = zoo.dataset("digits")
    assert data.shape == (1, 8, 8)
    assert len(data.train) + len(data.test) == 1797
    assert data.train.inputs.min() == 0
    assert data.train.inputs.max() == 1
    assert set(data.test.labels) == set(range(10))


def test_standardised_channels_have_mean_0_and_variance_1(cifar, monkeypatch, tmp_path):
    write(tmp_path / "cifar10", cifar[1])
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path))
    inputs = zoo.dataset("cifar10", standardise=True).train.inputs
    np.testing.assert_allclose(inputs.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(inputs.var((0, 2, 3)), 1, atol=1e-4)
    assert inputs.dtype == np.float32
    assert zoo.dataset("digits", standardise=True).deviation == pytest.approx(1, abs=1e-4)


def test_the_split_is_the_papers():
    """The pool is as large as the test set: 10,000 of 60,000 (MNIST) and of 50,000 (CIFAR10)."""
    for train, expected in ((60_000, 50_000), (50_000, 40_000)):
        numbers = np.arange(train, dtype=np.float32)[:, None]
        test = zoo.Examples(-1 - numbers[:10_000], np.zeros(10_000, np.int64))
        data = zoo.Dataset("numbers", 2, zoo.Examples(numbers, np.arange(train) % 2), test)
        split = data.split(seed=1)
        assert (len(split.train), len(split.pool), len(split.test)) == (expected, 10_000, 10_000)
        assert not set(split.train.inputs[:, 0]) & set(split.pool[:, 0])
        np.testing.assert_array_equal(split.train.inputs[:, 0] % 2, split.train.labels)


def test_a_split_follows_from_its_seed():
    data = zoo.dataset("digits")
    one, same, other = data.split(1), data.split(1), data.split(2)
    assert (len(one.train), len(one.pool), len(one.test)) == (1283, 257, 257)
    np.testing.assert_array_equal(one.pool, same.pool)
    np.testing.assert_array_equal(one.train.labels, same.train.labels)
    assert not np.array_equal(one.pool, other.pool)


def test_gaussian_inputs():
    x = zoo.gaussian_inputs(500, (1, 8, 8), rng=0)
    assert x.shape == (500, 1, 8, 8)
    assert x.dtype == np.float32
    assert x.std() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(x, zoo.gaussian_inputs(500, (1, 8, 8), rng=np.random.default_rng(0)))


def test_misuse_says_what_was_expected():
    with pytest.raises(rl.MisuseError, match="digits, mnist, cifar10"):
        zoo.dataset("imagenet")
    with pytest.raises(rl.MisuseError, match="label per input"):
        zoo.Examples(np.zeros((3, 2), np.float32), np.zeros(2, np.int64))
    few = zoo.Examples(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    with pytest.raises(rl.MisuseError, match="fewer test than training"):
        zoo.Dataset("few", 2, few, few).split()


def test_reading_data_and_naming_explanations_does_not_import_torch():
    program = "import sys, relumine.zoo.data, relumine.explain; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
