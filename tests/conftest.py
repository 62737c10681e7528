"""What holds for all tests."""

import signal
import zlib

import numpy as np
import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, and every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_company(request: pytest.FixtureRequest) -> None:
    """A module's RNG starts from the test's name: what a test draws does not depend on those that ran before."""
    rng = getattr(request.module, "RNG", None)
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = np.random.default_rng(zlib.crc32(request.node.name.encode())).bit_generator.state
