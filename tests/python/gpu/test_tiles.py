# SPDX-License-Identifier: Apache-2.0
"""Every tile of the loop of sm_90a gives the same bits, and tune chooses among them."""

import json
import re
import subprocess
from functools import cache

import pytest
from devices import expected_target
from on_device import DEVICE, run_script
from problems import DIM, VOCAB, Problem, only
from reference import same_bits
from tensors import make, torch

import rlk
from rlk._program import command

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(expected_target("cuda") != "sm_90a", reason="other targets have one tile"),
]

ROWS = 8192
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 385, 1000, 4096, 8192)
DTYPES = ("bfloat16", "float16")


def tile_names() -> list[str]:
    """As configure names them; those of det_gemm, such as 128x192, are another op's."""
    with pytest.raises(rlk.InvalidArgument) as refused:
        rlk.jit.configure(tile="no such tile")
    (names,) = re.findall(r"expected one of tuned, (.*), got", str(refused.value))
    return [name for name in names.split(", ") if "x" not in name]


def tile_of(p: Problem) -> str:
    """The tile of the kernel that a call runs."""
    found = re.search(r" tile=(\S+)]", rlk.jit.explain(rlk.jit.linear_logp, *p.operands).kernel)
    return found.group(1) if found else tile_names()[0]


@cache
def whole(dtype: str) -> Problem:
    return make(ROWS, DIM, VOCAB, dtype, bias="float32", seed=11)


@cache
def wanted(dtype: str) -> tuple:
    """Of all rows in one call, by the tile that calls take by themselves."""
    rlk.jit.configure(tile="tuned", max_sms=0)
    return whole(dtype).outputs()


def assert_rows(dtype: str, rows, what: str, **options) -> None:
    got = only(whole(dtype), rows).outputs(**options)
    for name, one, other in zip(got._fields, got, wanted(dtype), strict=True):
        assert same_bits(one, other[rows]), f"{name}: {what}"


@pytest.mark.parametrize("max_sms", [1, 7, 132])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", tile_names() if expected_target("cuda") == "sm_90a" else [])
def test_every_tile_gives_the_same_bits(tile, dtype, max_sms):
    wanted(dtype)
    rlk.jit.configure(tile=tile, max_sms=max_sms)
    assert tile_of(whole(dtype)) == tile
    for size in SIZES:
        for first in sorted({0, min(1, ROWS - size), min(2077, ROWS - size), ROWS - size}):
            assert_rows(dtype, slice(first, first + size), f"{size} rows from {first}")
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert_rows(dtype, order, "in another order")
    assert_rows(dtype, order[:333], "some rows")


# Active rows are copied side by side, here in one strip and in several.
@pytest.mark.parametrize("workspace_mib", [1, 512])
@pytest.mark.parametrize("tile", tile_names() if expected_target("cuda") == "sm_90a" else [])
def test_every_tile_takes_masked_rows(tile, workspace_mib):
    want = wanted("bfloat16")
    rlk.jit.configure(tile=tile, workspace_mib=workspace_mib)
    row = torch.arange(ROWS, device=DEVICE)
    for active in (row % 3 != 1, row < 385, row == 7, row < 0):
        got = whole("bfloat16").outputs(mask=active)
        for name, one, other in zip(got._fields, got, want, strict=True):
            assert same_bits(one[active], other[active]), name
            assert not one[~active].any(), name


def test_rows_enter_by_their_class():
    p = whole("bfloat16")
    taken = [tile_of(only(p, slice(0, rows))) for rows in (1, 64, 65, 256, 257, ROWS)]
    assert taken[0] == taken[1]
    assert taken[2] == taken[3]
    assert taken[4] == taken[5]


def test_tune_stores_what_later_processes_take(tmp_path):
    sizes = ["--vocab", str(VOCAB), "--hidden", str(DIM)]
    ran = subprocess.run(
        command(["tune", "--cache-dir", str(tmp_path), "--json", "--dtype", "bf16,fp16", *sizes]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["device"] == torch.cuda.get_device_name(0)
    assert len(told["measured"]) == 12
    for one in told["measured"]:
        assert {tile["tile"] for tile in one["tiles"]} == set(tile_names())
        assert all(tile["ms"] > 0 for tile in one["tiles"])
    chosen = [choice["tile"] for choice in told["chosen"]]
    assert set(chosen) <= set(tile_names())
    ended = run_script(
        f"""
        names = []
        for rows in (1, 100, 1000):
            operands = tensors({VOCAB}, {DIM}, rows)
            rlk.jit.linear_logp(*operands)
            names.append(rlk.jit.explain(rlk.jit.linear_logp, *operands).kernel)
        report(names=names)
        """,
        RLK_CACHE_DIR=str(tmp_path),
    )
    first = tile_names()[0]
    for name, tile in zip(ended.report["names"], chosen, strict=True):
        assert (f" tile={tile}]" in name) == (tile != first)
    assert ended.report["compiles"] == 0
    assert ended.warnings == []
