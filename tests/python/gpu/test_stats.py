# SPDX-License-Identifier: Apache-2.0
"""return_stats on a GPU: every tile's bits, wrong targets, rlk.Array, graphs, several strips."""

import pytest
from devices import expected_target
from on_device import graph_of
from problems import DIM, DTYPES, VOCAB, problem
from reference import same_bits
from stats import FIELDS, STATS, check_stats, same_stats
from tensors import make, torch, upload

import rlk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("generic")]

TILES = (
    "128-dynamic", "64-dynamic", "64-static", "128-static", "256-cooperative", "128-cluster",
)  # fmt: skip
is_sm90 = pytest.mark.skipif(
    expected_target("cuda") != "sm_90a", reason="other targets have one tile"
)


def stats_of(p, **options):
    return p.logp(**STATS, **options).stats


@is_sm90
@pytest.mark.parametrize("max_sms", [1, 132])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_tile_gives_the_same_bits(dtype, max_sms):
    rlk.jit.configure(specialize=True)
    p = make(1000, DIM, VOCAB, dtype, bias="float32")
    want = stats_of(p)
    check_stats(want, p.reference())
    for tile in TILES:
        rlk.jit.configure(tile=tile, max_sms=max_sms)
        assert same_stats(stats_of(p), want), tile


@pytest.mark.parametrize("dtype", DTYPES)
def test_strips_of_rows_do_not_matter(dtype):
    p = make(1500, 64, 70001, dtype)
    want = stats_of(p)
    for mib in (1, 23, 4096):
        rlk.jit.configure(workspace_mib=mib)
        assert same_stats(stats_of(p), want), f"{mib} MiB of workspace"


@pytest.mark.parametrize("op", ["linear_logp", "logp"])
def test_a_wrong_target_has_none(op):
    p = make(5, 24, 310)
    target = p.target.clone()
    target[2] = 310
    if op == "logp":
        stats = rlk.jit.logp(p.hidden @ p.weight.T, target, **STATS).stats
    else:
        stats = stats_of(p.but(target=target))
    assert stats.argmax.eq(-1).tolist() == [False, False, True, False, False]
    for name in ("max_logit", "mean_logit", "sum_p2"):
        assert getattr(stats, name).isnan().tolist() == [False, False, True, False, False]
    with pytest.raises(rlk.InvalidArgument, match="got 310 in row 2"):
        rlk.jit.check_errors()


class Producer:
    """A torch tensor that only speaks DLPack."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def test_arrays_of_other_frameworks():
    p = make(9, 24, 310)
    operands = map(Producer, (p.hidden, p.weight, p.target))
    stats = rlk.jit.linear_logp(*operands, **STATS).stats
    torch.cuda.synchronize()
    for name, want in zip(FIELDS, stats_of(p), strict=True):
        got = getattr(stats, name)
        assert type(got) is rlk.Array
        assert got.dtype == ("int64" if name == "argmax" else "float32")
        assert same_bits(torch.from_dlpack(got), want)


def test_in_a_graph():
    p, other = make(70, 40, 1000), upload(problem(70, 40, 1000, seed=1))
    want, want_of_other = stats_of(p), stats_of(other)
    graph, found = graph_of(lambda: stats_of(p))
    graph.replay()
    assert same_stats(found, want)
    p.hidden.copy_(other.hidden)
    p.weight.copy_(other.weight)
    graph.replay()
    torch.cuda.synchronize()
    assert same_stats(found, want_of_other)
    assert not same_stats(want, want_of_other)
