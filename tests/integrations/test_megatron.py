# SPDX-License-Identifier: Apache-2.0
"""Megatron's output layer and its cross entropy beside ours, on ranks of the CPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.tried("output layer and cross entropy over ranks", "megatron-core"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_numbers_of_megatron(size, tmp_path):
    import megatron_rank

    torch.multiprocessing.spawn(megatron_rank.work, (size, str(tmp_path)), size)
    for rank in range(size):
        found = torch.load(tmp_path / f"{rank}.pt")
        want = found.pop("Megatron")
        assert len(found) == 2
        for got in found.values():
            torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-5)
