# SPDX-License-Identifier: Apache-2.0
"""Tests that have a meaning on a GPU alone. Those of both devices take the fixture `device`."""

import pytest


@pytest.fixture(autouse=True)
def on_cuda():
    import devices

    devices.use("cuda")
    yield
    devices.use("cpu")
