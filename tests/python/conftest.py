# SPDX-License-Identifier: Apache-2.0
"""Tests never touch the user's kernel cache, and leave the settings of rlk as they found them."""

import os
import tempfile

import pytest

# Before rlk reads its environment at the first call. Settings of the caller would change what runs;
# RLK_TEST_, RLK_CHECK_ and RLK_LONG_TESTS are the tests' own.
_cache = tempfile.TemporaryDirectory(prefix="rlk-tests-")
for _name in list(os.environ):
    if _name.startswith("RLK_") and not _name.startswith(("RLK_TEST_", "RLK_CHECK_", "RLK_LONG_")):
        del os.environ[_name]
if os.environ.get("RLK_TEST_ARCH"):  # forces a target, as compute_80
    os.environ["RLK_ARCH"] = os.environ["RLK_TEST_ARCH"]
os.environ["RLK_CACHE_DIR"] = os.path.join(_cache.name, "cache")


@pytest.fixture(scope="session")
def first_settings():
    import rlk

    return rlk.jit.settings()


@pytest.fixture(autouse=True)
def keep_settings(first_settings):
    """Undoes what a test configures."""
    yield
    import rlk

    if rlk.jit.settings() != first_settings:
        rlk.jit.configure(**first_settings)


@pytest.fixture
def generic():
    """Runs the generic variants: no compile, the same bits."""
    import rlk

    rlk.jit.configure(specialize=False)


def pytest_runtest_setup(item):
    import devices

    if item.get_closest_marker("gpu"):
        if devices.why_no_gpu():
            pytest.skip(devices.why_no_gpu())
        if devices.KIND != "cuda" and "device" not in item.fixturenames:
            pytest.skip("RLK_TEST_DEVICE is not a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where the test's calls run; see devices.py. The cases of CUDA are skipped without a card."""
    import devices

    yield devices.use(request.param)
    devices.use("cpu")


@pytest.fixture(autouse=True)
def no_error_is_left(request):
    """A test that makes a GPU report an error takes the report too."""
    yield
    if request.node.get_closest_marker("gpu"):
        import devices
        import torch

        import rlk

        if devices.KIND == "cuda":
            torch.cuda.synchronize()
            rlk.jit.check_errors()
