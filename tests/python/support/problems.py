# SPDX-License-Identifier: Apache-2.0
"""Random inputs of linear_logp, the same from the same seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from devices import jit
from reference import Reference, as_float64, assert_within, dtype_name, same_bits

DTYPES = ("float32", "bfloat16", "float16")
NAMES = ("hidden", "weight", "bias")  # of what has a gradient
OUTPUTS = ("log_prob", "entropy", "lse")
DIM, VOCAB = 200, 3331  # specialized kernels of a GPU: each others cost seconds to compile


def numpy_type(dtype: str) -> np.dtype:
    """NumPy's dtype of a storage type; skips the test where ml_dtypes is not installed."""
    if dtype == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(dtype)


@dataclass(frozen=True)
class Problem:
    hidden: Any
    weight: Any
    target: Any
    bias: Any
    upstream: Any

    def but(self, **changed: Any) -> Problem:
        return replace(self, **changed)

    @property
    def operands(self) -> tuple[Any, Any, Any, Any]:
        return self.hidden, self.weight, self.target, self.bias

    def logp(self, **options: Any) -> Any:
        return jit.linear_logp(*self.operands, **options)

    def grads(self, **options: Any) -> Any:
        return jit.linear_logp_backward(self.upstream, *self.operands, **options)

    def outputs(self, **options: Any) -> Any:
        options = {"return_entropy": True, "return_lse": True, **options}
        return jit.linear_logp(*self.operands, **options)

    def reference(self, **options: Any) -> Reference:
        return Reference(*self.operands, **options)


def problem(
    rows: int | tuple[int, ...] = 7,
    dim: int = 24,
    vocab: int = 300,
    dtype: str = "float32",
    *,
    bias: str | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Gaussian operands whose logits have about unit deviation times scale."""
    rng = np.random.default_rng([seed, dim, vocab])
    kind = numpy_type(dtype)
    lead = (rows,) if isinstance(rows, int) else rows
    # The bias comes last, so that a problem without it is otherwise the same.
    return Problem(
        hidden=(rng.standard_normal((*lead, dim)) * scale).astype(kind),
        weight=(rng.standard_normal((vocab, dim)) / np.sqrt(dim)).astype(kind),
        target=np.asarray(rng.integers(0, vocab, lead)),
        upstream=np.asarray(rng.standard_normal(lead), np.float32),
        bias=None if bias is None else rng.standard_normal(vocab).astype(numpy_type(bias)),
    )


def of_logits(logits: Any, target: Any, dtype: str = "float32") -> Problem:
    """A problem whose logits are the rows of `logits`, exactly: hidden is the identity."""
    logits = np.asarray(logits, np.float64)
    kind = numpy_type(dtype)
    rows = logits.shape[0]
    return Problem(
        hidden=np.eye(rows).astype(kind),
        weight=np.ascontiguousarray(logits.T).astype(kind),
        target=np.asarray(target),
        bias=None,
        upstream=np.linspace(-1, 2, rows, dtype=np.float32),
    )


def only(p: Problem, rows: Any) -> Problem:
    """These rows (a slice, indices or a mask) in a call of their own."""
    return Problem(p.hidden[rows], p.weight, p.target[rows], p.bias, p.upstream[rows])


def with_garbage(p: Problem, active: np.ndarray) -> Problem:
    """NaN hidden states and upstream gradients, and wild ids, in the inactive rows."""
    hidden, target, upstream = p.hidden.copy(), p.target.copy(), p.upstream.copy()
    hidden[~active] = np.nan
    upstream[~active] = np.inf
    target[~active] = np.resize([-1, 2**31, 2**32 + 1, -(2**63), 2**63 - 1], (~active).sum())
    return Problem(hidden, p.weight, target, p.bias, upstream)


def all_grads(p: Problem, **options: Any) -> Any:
    """Gradients of all three outputs at once."""
    return p.grads(grad_entropy=p.upstream * 0.25 - 1, grad_lse=p.upstream * 0.5, **options)


def all_results(p: Problem, **options: Any) -> tuple[Any, ...]:
    """All outputs, then those gradients."""
    return *p.outputs(**options), *all_grads(p, **options)


def assert_same(got: tuple[Any, ...], want: tuple[Any, ...], what: object) -> None:
    """The same bits in all_results, or in its first ones."""
    for name, one, other in zip((*OUTPUTS, *NAMES), got, want, strict=False):
        assert one is other is None or same_bits(one, other), f"{name}: {what}"


def check(p: Problem, what: str = "", **options: Any) -> None:
    """Log-probs and all gradients are within their bounds."""
    reference = p.reference(**options)
    logp = p.logp(**options)
    assert dtype_name(logp) == "float32"
    assert_within(logp, reference.forward(), f"{what} log-prob")
    assert not (as_float64(logp) > 0).any()
    grads = p.grads(**options)
    for name, exact in reference.gradients(p.upstream).items():
        got = getattr(grads, name)
        assert got.dtype == getattr(p, name).dtype
        assert_within(got, exact, f"{what} gradient of {name}")
    assert (grads.bias is None) == (p.bias is None)


def check_all_outputs(p: Problem, what: str = "", **options: Any) -> None:
    """Log-prob, entropy, log-sum-exp and the gradients of all three are within their bounds."""
    reference = p.reference(**options)
    found = p.outputs(**options)
    for name, exact in reference.outputs().items():
        got = getattr(found, name)
        assert dtype_name(got) == "float32"
        assert_within(got, exact, f"{what} {name}")
    upstream = as_float64(p.upstream)
    rng = np.random.default_rng(upstream.size)
    more = [rng.standard_normal(upstream.shape).astype(np.float32) for _ in range(2)]
    sets = [(p.upstream, *more), (None, more[0], None), (None, None, more[1])]
    for log_prob, entropy, lse in sets:
        got = jit.linear_logp_backward(
            log_prob, *p.operands, grad_entropy=entropy, grad_lse=lse, **options
        )
        for name, exact in reference.gradients(log_prob, entropy, lse).items():
            assert_within(getattr(got, name), exact, f"{what} gradient of {name}")
