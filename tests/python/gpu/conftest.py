# SPDX-License-Identifier: Apache-2.0
"""Tests of the public API on a CUDA device.

RLK_TEST_DEVICE=cpu runs those that have a meaning there, so that a test can be tried without a GPU;
RLK_TEST_ARCH forces a target, as compute_80.
"""

import os

import pytest

if os.environ.get("RLK_TEST_ARCH"):  # before rlk reads its environment at the first call
    os.environ["RLK_ARCH"] = os.environ["RLK_TEST_ARCH"]


@pytest.fixture(autouse=True)
def no_error_is_left():
    """A test that makes the device report an error takes the report too."""
    yield
    from on_device import CUDA, torch

    if CUDA:
        torch.cuda.synchronize()
        import rlk

        rlk.jit.check_errors()
