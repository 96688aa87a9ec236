# SPDX-License-Identifier: Apache-2.0
"""Foreign kernels: what goes wrong in one is a result of that case, never an exception."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from broken import Reference

import rlk.check
from rlk.check import Misuse
from rlk.check.case import Case
from rlk.check.specs import SPECS

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

GOOD = rlk.check.specs.linear_logp.torch_linear_logp


def outcome(candidate: Any, **options: Any) -> dict[str, str | None]:
    given = {"options": {}, "grad": True, **options}
    report = rlk.check.run(candidate=candidate, dtype="fp32", **given)
    return {result.check: result.failure for result in report.results}


def test_a_plain_function_passes() -> None:
    def kernel(**a: Any) -> Any:
        return GOOD(**a)

    assert outcome(kernel) == {"forward": None, "gradient": None}


def test_forward_is_used_only_where_the_object_cannot_be_called() -> None:
    class OnlyForward:
        def forward(self, **a: Any) -> Any:
            return GOOD(**a)

    class Both(OnlyForward):
        def __call__(self, **a: Any) -> Any:
            return GOOD(**a) + 1

    assert outcome(OnlyForward())["forward"] is None
    assert outcome(Both())["forward"] == "inactive"


def raises(**a: Any) -> Any:
    raise RuntimeError("no such kernel")


def in_bf16(**a: Any) -> Any:
    return GOOD(**a).bfloat16()


def two_outputs(**a: Any) -> Any:
    return GOOD(**a), GOOD(**a)


def flattened(**a: Any) -> Any:
    return GOOD(**a).reshape(-1)


def no_tensor(**a: Any) -> Any:
    return 1.0


@pytest.mark.parametrize(
    ("kernel", "failure"),
    [
        (raises, "raised"),
        (in_bf16, "dtype"),
        (two_outputs, "arity"),
        (flattened, "shape"),
        (no_tensor, "dtype"),
    ],
)
def test_a_bad_forward_is_named(kernel: Any, failure: str) -> None:
    assert outcome(kernel) == {"forward": failure, "gradient": failure}


class Backward(torch.autograd.Function):
    """Any backward behind a correct forward."""

    @staticmethod
    def forward(ctx: Any, result: Any, *a: Any) -> Any:
        ctx.result = result
        return GOOD(**dict(zip(("hidden", "weight", "target", "bias"), a, strict=True)))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return None, *ctx.result()


def with_backward(result: Any) -> Any:
    def kernel(hidden: Any, weight: Any, target: Any, bias: Any) -> Any:
        return Backward.apply(result, hidden, weight, target, bias)

    return kernel


def throws() -> Any:
    raise NotImplementedError("backward")


@pytest.mark.parametrize("result", [lambda: (None,) * 4, throws, lambda: (None,) * 2])
def test_a_missing_gradient_is_named(result: Any) -> None:
    assert outcome(with_backward(result)) == {"forward": None, "gradient": "no_gradient"}


def test_a_detached_output_is_named() -> None:
    def kernel(**a: Any) -> Any:
        return GOOD(**a).detach()

    assert outcome(kernel) == {"forward": None, "gradient": "no_gradient"}


def numpy_kernel(change: Any) -> Any:
    class Kernel(Reference):
        def backward(self, *a: Any, **k: Any) -> Any:
            return change(super().backward(*a, **k))

    return Kernel()


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (lambda g: g, None),
        (lambda g: g[:2], "grad_arity"),
        (lambda g: (g[0], None, g[2]), "no_gradient"),
        (lambda g: (g[0], g[1].T, g[2]), "grad_shape"),
        (lambda g: (g[0], g[1].astype(np.float64), g[2]), "grad_dtype"),
        (lambda g: (g[0], "weight", g[2]), "grad_dtype"),
    ],
)
def test_a_bad_backward_is_named(change: Any, failure: str | None) -> None:
    assert outcome(numpy_kernel(change)) == {"forward": None, "gradient": failure}


def test_a_numpy_kernel_without_backward_has_no_gradient() -> None:
    class Kernel(Reference):
        backward: Any = None

    assert outcome(Kernel()) == {"forward": None, "gradient": "no_gradient"}


def test_an_adapter_calls_in_another_order_and_lists_what_it_cannot_pass() -> None:
    def linear_cross_entropy(weight: Any, hidden: Any, target: Any, bias: Any = None) -> Any:
        return -GOOD(hidden, weight, target, bias)

    report = rlk.check.run(
        candidate=linear_cross_entropy, adapter="cross_entropy", suite=True, dtype="fp32"
    )
    kinds = {r.failure for r in report.results if r.check in ("forward", "gradient")}
    assert kinds == {None, "grad_accuracy"}  # autograd's own answer for a target at -inf
    skipped = [r for r in report.results if r.status == "not_applicable"]
    assert any("does not take temperature" in (r.message or "") for r in skipped)


def test_the_candidate_cannot_reach_the_oracles_inputs() -> None:
    def vandal(**a: Any) -> Any:
        result = GOOD(**a)
        with torch.no_grad():
            a["weight"].zero_()
        return result

    assert outcome(vandal) == {"forward": "input_changed", "gradient": "input_changed"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"op": "softmax"}, "op"),
        ({"vocab": 0}, "vocab"),
        ({"hidden": -1}, "hidden"),
        ({"batch": 0}, "batch"),
        ({"dtype": "fp64"}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"input_mode": "zeros"}, "input_mode"),
        ({"invariance": True, "input_mode": "adversarial"}, "invariance"),
        ({"candidate": "nothing"}, "candidate"),
        ({"candidate": "os:nothing"}, "candidate"),
        ({"adapter": "liger"}, "adapter"),
        ({"framework": "jax"}, "framework"),
        ({"target": "sm_90a"}, "target"),
        ({"variant": "generic"}, "variant"),
        ({"token_value": 257}, "token_value"),
        ({"blocks": (7, 0), "invariance": True}, "blocks"),
        ({"blocks": (), "invariance": True}, "blocks"),
        ({"blocks": (1 << 80,), "invariance": True}, "blocks"),
        ({"blocks": (7,), "invariance": True}, "blocks"),  # of a kernel that sets none
        ({"blocks": (7,)}, "blocks"),
        ({"constant_value": 2.0}, "constant_value"),
        ({"arch_key": "nope"}, "arch_key"),
        ({"op": "logp", "hidden": 64}, "hidden"),
        ({"op": "ppo_loss", "vocab": 300}, "vocab"),
        ({"op": "ppo_loss", "token_value": 3}, "token_value"),
        ({"vocab": 10**14}, "vocab"),
        ({"batch": 10**30}, "batch"),
        ({"vocab": "many"}, "vocab"),
        ({"hidden": 8.5}, "hidden"),
        ({"seed": None}, "seed"),
        ({"seq": True}, "seq"),
        ({"random": 1.5}, "random"),
        ({"random": 0}, "random"),
        ({"suite": True, "vocab": 100}, "vocab"),
        ({"suite": True, "options": {"bias": "none"}}, "options"),
        ({"random": 3, "dtype": "fp16"}, "dtype"),
        ({"random": 3, "input_mode": "flat"}, "input_mode"),
        ({"random": 3, "blocks": (7,)}, "blocks"),
        ({"corpus": "all", "dtype": "fp16"}, "dtype"),
        ({"corpus": "all", "suite": True}, "suite"),
        ({"corpus": "all", "random": 3}, "random"),
        ({"corpus": "cce_48_softcap_left_out", "grad": True}, "grad"),
        ({"options": "some"}, "options"),
        ({"options": {"top_k": 30}}, "options"),
        ({"framework": "numpy", "device": "cuda"}, "device"),
    ],
)
def test_misuse_names_the_argument_and_does_no_work(arguments: Any, named: str) -> None:
    calls = []

    def kernel(**a: Any) -> Any:
        calls.append(a)

    with pytest.raises(Misuse, match=f"^{named}: expected"):
        rlk.check.run(**{"candidate": kernel, **arguments})
    assert not calls


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_what_one_size_takes_shows_in_its_inputs(spec: Any) -> None:
    sizes = dict.fromkeys(spec.sizes, 24)
    base = Case(spec.name, "float32", (2, 8), sizes, "constant", "contiguous", {}, 0)
    values = {"constant_value": 0.25} | ({"token_value": 5, "ignored": 0} if spec.ids else {})
    changed = [{"options": values}, *({"sizes": {**sizes, name: 25}} for name in sizes)]

    def floats(**changes: Any) -> Any:
        stored = spec.build(base.but(**changes)).values.values()
        return [one.values() for one in stored if hasattr(one, "values")]

    for changes in changed:
        pairs = zip(floats(), floats(**changes), strict=True)
        assert any(a.shape != b.shape or (a != b).any() for a, b in pairs), changes
    if spec.ids:
        assert (spec.build(base.but(options=values))[spec.ids].raw() == 5).all()


def test_a_cuda_kernel_on_the_cpu_is_misuse() -> None:
    def kernel(**a: Any) -> Any: ...

    kernel.devices = ("cuda",)  # type: ignore[attr-defined]
    with pytest.raises(Misuse, match="device: expected cuda for kernel, got cpu"):
        rlk.check.run(candidate=kernel)


def test_the_package_needs_numpy_alone() -> None:
    code = (
        "import sys, types\n"
        "for name in ('torch', 'ml_dtypes', 'rich'):\n    sys.modules[name] = None\n"
        "import rlk.check, rlk.check.cli\n"
        "from rlk.check.specs import SPECS\n"
        "case = SPECS['linear_logp'].suite('bfloat16', True, 0)[0]\n"
        "SPECS['linear_logp'].build(case)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("last_bit", [0.0, 2.0**-20])
def test_grids_of_other_sizes_must_give_the_same_bits(last_bit: float) -> None:
    counts = []

    def kernel(**a: Any) -> Any:
        forced = bool(counts) and counts[-1] == 7
        return GOOD(**a) * (1.0 + last_bit * forced)

    kernel.set_blocks = counts.append  # type: ignore[attr-defined]
    found = outcome(kernel, invariance=True, blocks=(1, 7))
    assert found["invariance blocks"] == ("batch_variant" if last_bit else None)
    assert counts == [1, 0, 7, 0]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("thrown", [SystemExit(0), GeneratorExit(), MemoryError(), Unspeakable()])
def test_whatever_a_kernel_throws_is_a_failure(thrown: BaseException) -> None:
    def kernel(**a: Any) -> Any:
        raise thrown

    assert outcome(kernel) == {"forward": "raised", "gradient": "raised"}


def test_a_kernel_can_be_interrupted() -> None:
    def kernel(**a: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcome(kernel)


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "1/0", "syntax error"])
def test_a_module_that_cannot_be_imported_is_misuse(
    code: str, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "unimportable_kernel.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misuse, match="candidate: expected an importable"):
        rlk.check.run(candidate="unimportable_kernel:kernel")


def test_an_output_of_another_shape_fails_every_check() -> None:
    def kernel(**a: Any) -> Any:
        return torch.zeros(1)

    found = outcome(kernel, invariance=True)
    assert set(found.values()) == {"shape"}
