# SPDX-License-Identifier: Apache-2.0
"""det_gemm for the checker. A row is one of a's; `hidden` is K and `vocab` is N, as in a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case, Inputs, Liveness
from ..contract import Coefficients
from ..oracle import Bounded, Expected
from ..spec import Changes, OpSpec, RandomShape
from ..stored import Stored, decode, encode, of

KINDS = {
    "random": "normal values",
    "benchmark": "normal values, b over sqrt(K)",
    "constant": "all values the same",
    "one_sign": "positive values, whose roundings add up",
    "cancel": "terms that cancel in pairs, all but the last bits",
    "scales": "rows of very different sizes",
    "one_nan": "a NaN, which makes its row NaN and no other",
}


def shape(lead: tuple[int, ...], terms: int, cols: int, **more: Any) -> Changes:
    return {"lead": lead, "sizes": {"hidden": terms, "vocab": cols}, **more}


class DetGemm(OpSpec):
    """a @ b + bias."""

    name = "det_gemm"
    op_class = "product"
    row_inputs = ("a",)
    outputs = ("out",)
    output_options = frozenset({"out_dtype"})
    grad_arguments: Mapping[str, str] = {"out": "grad_output"}
    differentiable = ("a", "b", "bias")
    row_outputs = ("out", "a")
    axes: Mapping[str, tuple[str, ...]] = {
        "out": ("col",),
        "a": ("term",),
        "b": ("term", "col"),
        "bias": ("col",),
    }
    kinds = KINDS
    forward_only = ("one_nan",)
    option_sets: Sequence[Mapping[str, Any]] = (
        {},
        {"bias": "none"},
        {"bias": "float32"},
        {"out_dtype": "float32"},
        {"out_dtype": "float32", "bias": "none"},
    )
    own_options = ("bias",)
    # One element, sizes around vectors, blocks of 192 and tiles of 64, 128, 192, odd, no rows.
    shapes: Sequence[Changes] = (
        shape((2, 8), 96, 257),
        shape((1, 1), 1, 1),
        shape((3,), 2, 1),
        shape((), 17, 5),
        shape((5,), 33, 97),
        shape((15,), 191, 64),
        shape((1, 5), 193, 17),
        shape((17,), 384, 49),
        shape((65,), 127, 193),
        shape((3, 50), 1025, 40),
        shape((33,), 64, 1030),
        shape((0,), 64, 32),
    )
    specialized_shapes: Sequence[Changes] = (shape((2, 8), 96, 257), shape((1, 5), 193, 17))
    combinations: Sequence[Changes] = (
        {"layout": "transposed", "options": {"bias": "none"}},
        {"layout": "shifted", "options": {"out_dtype": "float32"}},
    )
    invariant: Sequence[Changes] = (
        shape((2, 65), 257, 96),
        shape((2, 65), 33, 385, options={"bias": "none", "out_dtype": "float32"}),
    )
    transforms = ("batch_size", "row_position", "micro_batches", "determinism", "layout")
    torch_reference = staticmethod(lambda **arguments: torch_det_gemm(**arguments))

    def draw(self, case: Case) -> dict[str, Any]:
        terms, cols = case.sizes["hidden"], case.sizes["vocab"]
        rng = {name: case.rng(name) for name in ("a", "b", "bias")}
        a = rng["a"].normal(size=(*case.lead, terms))
        b = rng["b"].normal(size=(terms, cols))
        if case.kind == "benchmark":
            b /= np.sqrt(terms)
        if case.kind == "constant":
            value = case.options.get("constant_value")
            both = (0.75, -1.5) if value is None else (value, value)
            a, b = np.full_like(a, both[0]), np.full_like(b, both[1])
        if case.kind == "one_sign":
            a, b = np.abs(a) + 0.5, np.abs(b) + 0.5
        if case.kind == "cancel":
            half = terms // 2 * 2
            a[..., 1:half:2] = a[..., 0:half:2]
            b[1:half:2] = -b[0:half:2] * (1 + 2**-6 * rng["b"].random((terms // 2, 1)))
        if case.kind == "scales":
            a *= np.exp2(rng["a"].integers(-8, 5, size=(*case.lead, 1)))
        if case.kind == "one_nan" and a.size:
            a.reshape(-1)[0] = np.nan
        has_bias = case.options.get("bias") != "none"
        return {"a": a, "b": b, "bias": rng["bias"].normal(size=cols) if has_bias else None}

    def dtype_of(self, case: Case, name: str) -> str:
        has_single = name == "bias" and case.options.get("bias") == "float32"
        return "float32" if has_single else super().dtype_of(case, name)

    def dtype_of_output(self, inputs: Inputs, name: str) -> str:
        return str(inputs["out_dtype"] or inputs["a"].dtype)

    def output_shape(self, inputs: Inputs, name: str) -> tuple[int, ...]:
        return (*inputs.lead, inputs["b"].shape[1])

    def upstream(self, case: Case, inputs: Inputs) -> Mapping[str, Stored]:
        """Of the output's dtype; values that a's dtype has, to which a gradient is rounded."""
        rng = case.rng("upstream of out")
        g = rng.normal(size=self.output_shape(inputs, "out"))
        layout = "contiguous" if case.layout in ("transposed", "expanded") else case.layout
        dtype = inputs["a"].dtype
        return {
            "out": of(decode(encode(g, dtype), dtype), self.dtype_of_output(inputs, "out"), layout)
        }

    def expected(self, case: Case, inputs: Inputs, coefficients: Coefficients) -> Expected:
        a, b = (inputs[name].values() for name in ("a", "b"))
        bias = 0.0 if inputs["bias"] is None else inputs["bias"].values()

        def bounded(value: Any, size: Any, terms: int, dtype: str) -> Bounded:
            c = coefficients(self.op_class, dtype)
            chain = (c["chain_slope"] * terms + c["chain_constant"]) * c["chain_unit"]
            return Bounded(value, c["store_rtol"] * np.abs(value) + c["store_atol"] + chain * size)

        def gradients(upstream: Mapping[str, Stored]) -> Mapping[str, Bounded]:
            g = upstream["out"].values()
            rows, flat = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
            exact = {
                "a": (g @ b.T, np.abs(g) @ np.abs(b.T), b.shape[1]),
                "b": (rows.T @ flat, np.abs(rows.T) @ np.abs(flat), len(flat)),
                "bias": (flat.sum(0), np.abs(flat).sum(0), len(flat)),
            }
            return {n: bounded(*exact[n], inputs[n].dtype) for n in self.needs(inputs)}

        with np.errstate(invalid="ignore"):
            size = np.abs(a) @ np.abs(b) + np.abs(bias)
            out = bounded(a @ b + bias, size, a.shape[-1], self.dtype_of_output(inputs, "out"))
        return Expected({"out": out}, gradients)

    def random_shape(self, rng: np.random.Generator) -> RandomShape:
        terms = int(rng.choice([rng.integers(1, 20), rng.integers(1, 300)]))
        cols = int(rng.choice([rng.integers(1, 20), rng.integers(1, 400)]))
        rows = int(rng.choice([rng.integers(0, 4), rng.integers(1, 150)]))
        return ((rows,) if rng.random() < 0.7 else (2, rows)), {"hidden": terms, "vocab": cols}, {}

    def liveness(self, case: Case) -> list[Liveness]:
        base = self.build(case.but(kind="random", options={"bias": "none"}))
        ramp = np.linspace(-1.0, 1.0, case.sizes["vocab"])
        return [Liveness("bias", base, base.but(bias=of(ramp, case.dtype)), ("out",))]


def torch_det_gemm(a: Any, b: Any, bias: Any = None, out_dtype: str | None = None) -> Any:
    """As PyTorch users write it: the product in the inputs' own type, then the bias."""
    import torch

    product = torch.matmul(a, b)
    if bias is not None:
        product = product + bias.to(product.dtype)
    return product if out_dtype is None else product.to(getattr(torch, out_dtype))
