# SPDX-License-Identifier: Apache-2.0
"""Tests never touch the user's kernel cache, and leave the settings of rlk as they found them."""

import os
import tempfile

import pytest

# Before rlk reads its environment at the first call. Settings of the caller would change what runs;
# RLK_TEST_ and RLK_CHECK_ are the tests' own.
_cache = tempfile.TemporaryDirectory(prefix="rlk-tests-")
for _name in list(os.environ):
    if _name.startswith("RLK_") and not _name.startswith(("RLK_TEST_", "RLK_CHECK_")):
        del os.environ[_name]
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
