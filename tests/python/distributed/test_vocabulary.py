# SPDX-License-Identifier: Apache-2.0
"""Calls whose vocabulary ranks share have the bits of one device, on 1, 2, 4 and 8 ranks that each
hold a node of the segments' tree."""

from dataclasses import dataclass, field

import pytest
import ranks
from ranks import torch
from reference import same_bits
from torch import distributed

import rlk

pytestmark = pytest.mark.torch

DIM, SEGMENTS = 24, 8


@dataclass(frozen=True)
class Case:
    """A call, its inputs drawn anew from the same seed at each use."""

    vocab: int = 8 * 140  # two leaves a segment
    rows: tuple[int, ...] = (13,)  # which no number of ranks divides
    dtype: torch.dtype = torch.float32
    dim: int = DIM
    bias: torch.dtype | None = None
    per_row: bool = False  # a mask, a temperature a row, ignored rows and rows without gradient
    hole: bool = False  # a rank's ids are all at -inf, a row is NaN
    master: bool = False  # float32 operands that compute_dtype casts
    accumulates: bool = False
    sequence_parallel: bool = False
    op: str = "linear_logp"
    options: dict = field(default_factory=dict)

    def inputs(self, kind):
        """(hidden or logits, weight, bias, target), options, gradients of the three results."""
        drawn = torch.Generator().manual_seed(self.vocab)

        def normal(*shape, dtype=torch.float32):
            return torch.randn(shape, generator=drawn).to(dtype).to(kind)

        stored = torch.float32 if self.master else self.dtype
        hidden = normal(*self.rows, self.dim, dtype=stored)
        weight = normal(self.vocab, self.dim, dtype=stored)
        bias = None if self.bias is None else normal(self.vocab, dtype=self.bias)
        target = torch.randint(self.vocab, self.rows, generator=drawn).to(kind)
        options, upstream = dict(self.options), [normal(*self.rows) for _ in range(3)]
        if self.per_row:
            options["temperature"] = torch.rand(self.rows, generator=drawn).to(kind) + 0.5
            options["mask"] = (torch.rand(self.rows, generator=drawn) < 0.8).to(kind)
            target.view(-1)[::5] = -100
            for grad in upstream:
                grad.view(-1)[1::4] = 0
        if self.hole:
            bias = torch.zeros(self.vocab, device=kind)
            bias[self.vocab // 2 : self.vocab // 2 + self.vocab // 8] = -torch.inf
            hidden.view(-1, self.dim)[3] = torch.nan
        if self.master:
            options["compute_dtype"] = self.dtype
        if self.op == "logp":
            hidden = (hidden @ weight.T).to(self.dtype)
        return [hidden, weight, bias, target], options, upstream


ALL = {"return_entropy": True, "return_lse": True, "return_stats": True}
CASES = {
    "float32": Case(),
    "float32, everything": Case(
        bias=torch.float32,
        per_row=True,
        options=ALL | {"softcap": 5.0, "logit_scale": 1.5},
    ),
    "float32, nothing kept": Case(options={"saved_mib": 0}),
    "float32, all kept": Case(bias=torch.float32, options={"saved_mib": 1024}),
    "bfloat16": Case(dtype=torch.bfloat16, rows=(3, 5)),
    "bfloat16, everything": Case(
        dtype=torch.bfloat16, bias=torch.bfloat16, per_row=True, options=ALL | {"temperature": 0.7}
    ),
    "bfloat16 of float32": Case(dtype=torch.bfloat16, master=True, bias=torch.float32),
    "float16, accumulated": Case(dtype=torch.float16, accumulates=True),
    "an odd vocabulary": Case(vocab=8 * 140 - 5, bias=torch.float32, options=ALL),
    "fewer ids than segments": Case(vocab=5, options=ALL),
    "one row": Case(rows=(1,), options=ALL),
    "no rows": Case(rows=(0,)),
    "ids at -inf, a row of NaN": Case(hole=True, options=ALL),
    "sequence parallel": Case(rows=(16,), sequence_parallel=True, per_row=True, options=ALL),
    "sequence parallel, bfloat16": Case(
        rows=(8, 3), sequence_parallel=True, dtype=torch.bfloat16, bias=torch.float32
    ),
    "logp": Case(op="logp"),
    "logp, everything": Case(op="logp", per_row=True, options=ALL | {"softcap": 5.0}),
    "logp, bfloat16, an odd vocabulary": Case(op="logp", dtype=torch.bfloat16, vocab=8 * 140 - 5),
}
#: On cards alone: sizes at which their kernels take every way.
LARGE = {
    f"{dtype}, {rows} rows": Case(
        128256, (rows,), dtype, 512, torch.float32, per_row=True, options=ALL | {"saved_mib": mib}
    )
    for dtype, rows, mib in (
        (torch.bfloat16, 1000, 512),
        (torch.bfloat16, 60, 0),
        (torch.float16, 300, 0),
        (torch.float32, 100, 0),
    )
}


def ids_of(case, rank, size):
    """[begin, end) of this rank's node: so many neighbouring segments."""
    segment = -(-case.vocab // SEGMENTS)
    return (min(r * SEGMENTS // size * segment, case.vocab) for r in (rank, rank + 1))


def results(case, kind, rank=0, size=1, group=None):
    """What one rank is given: outputs, statistics and gradients, by name."""
    (first, weight, bias, target), options, upstream = case.inputs(kind)
    begin, end = ids_of(case, rank, size)
    rows = slice(None)
    if case.sequence_parallel:
        each = len(first) // size
        rows = slice(rank * each, (rank + 1) * each)
    if group is not None:
        options["group"] = group
        if case.vocab % SEGMENTS or rank % 2:  # the default cut is the same where 8 divides V
            options["vocab_size"] = case.vocab
        if case.sequence_parallel:
            options["sequence_parallel"] = True
    if case.op == "logp":
        leaves = {"logits": first[..., begin:end]}
    else:
        leaves = {"hidden": first[rows], "weight": weight[begin:end]}
        if bias is not None:
            leaves["bias"] = bias[begin:end]
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    if case.accumulates:
        options["accumulate_into"] = weight[begin:end].float()
    out = getattr(rlk.jit, case.op)(target=target, **leaves, **options)
    if isinstance(out, torch.Tensor):
        out = (out,)
    losses = [(o * g).sum() for o, g in zip(out[:3], upstream, strict=False) if o is not None]
    sum(losses).backward()
    found = {"log_prob": out[0]}
    if len(out) > 1:
        found |= {"entropy": out[1], "lse": out[2], **out.stats._asdict()}
    found |= {f"of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    if case.accumulates:
        found["of weight"] = options["accumulate_into"]
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def part_of(case, whole, rank, size):
    """Of one device's results what a rank should have."""
    begin, end = ids_of(case, rank, size)
    found = dict(whole)
    for name in {"of weight", "of bias", "of logits"}.intersection(found):
        axis = -1 if name == "of logits" else 0
        found[name] = found[name].narrow(axis, begin, end - begin)
    if case.sequence_parallel:
        found["of hidden"] = found["of hidden"].chunk(size)[rank]
    return found


def groups_of(world, size, strided):
    """This rank's group of `size` ranks, one of several that cover the world."""
    ids = torch.arange(world)
    ids = ids.view(size, -1).T if strided else ids.view(-1, size)
    return distributed.new_subgroups_by_enumeration(ids.tolist())[0]


def unlike(case, kind, whole, group):
    """Names of this rank's results that have not the bits of one device's."""
    rank, size = group.rank(), group.size()
    got = results(case, kind, rank, size, group)
    want = part_of(case, whole, rank, size)
    assert got.keys() == want.keys()
    return [name for name in want if not same_bits(got[name], want[name])]


def work(kind, rank):
    world = distributed.get_world_size()
    rlk.jit.configure(num_threads=1, specialize=False)
    sizes = [size for size in (1, 2, 4, 8) if size <= world]
    named = {f"{size}": groups_of(world, size, strided=False) for size in sizes}
    named |= {f"{size}, strided": groups_of(world, size, True) for size in sizes[1:-1]}
    found = {}
    for name, case in (CASES | (LARGE if kind == "cuda" else {})).items():
        whole = results(case, kind)
        found[name] = {of: unlike(case, kind, whole, group) for of, group in named.items()}
    rlk.jit.check_errors()
    return found


@pytest.fixture(scope="module", params=ranks.worlds(8, 2, 4))
def found(request, tmp_path_factory):
    """(kind of device, what each rank found)."""
    kind, size = request.param
    return kind, ranks.run(kind, work, tmp_path_factory.mktemp("ranks"), size)


@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_the_bits_of_one_device(found, name):
    kind, of_ranks = found
    if kind == "cpu" and name in LARGE:
        pytest.skip("a size for cards")
    for rank, of_sizes in enumerate(of_ranks):
        assert len(of_sizes[name]) >= 2
        for size, differing in of_sizes[name].items():
            assert differing == [], f"{size} ranks, rank {rank}"
