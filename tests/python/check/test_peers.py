# SPDX-License-Identifier: Apache-2.0
"""Peers by name: what each is called with, what it is not asked for, and what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
from long_run import LONG

import rlk.check
from rlk.check import Misuse, cli, peers

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    # Of torch's compiler, where this process imports it first.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


def cross_entropy(logits: Any, ids: Any, reduction: str, ignored: int, smoothing: float = 0) -> Any:
    kept = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
    return F.cross_entropy(logits.float(), ids, **kept)


def capped(logits: Any, softcap: float | None) -> Any:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


class LigerLinear:
    """liger_kernel.ops.fused_linear_cross_entropy, in torch."""

    @staticmethod
    def apply(
        x: Any, weight: Any, ids: Any, bias: Any, ce_weight: Any, ignored: int, z: float, e: float,
        reduction: str, softcap: float | None,
    ) -> Any:  # fmt: skip
        assert ce_weight is None
        logits = capped(F.linear(x, weight, bias), softcap)
        loss = cross_entropy(logits, ids, reduction, ignored, e)
        squares = z * torch.where(ids == ignored, 0.0, logits.logsumexp(-1)).square()
        return loss + (squares.sum() if reduction == "sum" else squares), None


class LigerLogits:
    """liger_kernel.ops.cross_entropy."""

    @staticmethod
    def apply(
        x: Any, ids: Any, ce_weight: Any, ignored: int, z: float, e: float, reduction: str,
        softcap: float | None,
    ) -> Any:  # fmt: skip
        assert (ce_weight, z) == (None, 0.0)
        return cross_entropy(capped(x, softcap), ids, reduction, ignored, e), None


def rows(x: Any, weight: Any, ids: Any, temperature: float) -> tuple[Any, Any]:
    assert isinstance(temperature, float)
    logp = torch.log_softmax(F.linear(x, weight).float() / temperature, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, ids.clamp(min=0)[:, None])[:, 0], entropy


class LigerScaled:
    """liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90."""

    @staticmethod
    def apply(
        x: Any, weight: Any, ids: Any, temperature: float, ignored: int, tiles: int, entropy: bool
    ) -> Any:
        assert tiles == 1
        logp, h = rows(x, weight, ids, temperature)
        nll = -logp * (ids != ignored)
        return (nll, h) if entropy else nll


def cce(
    e: Any, c: Any, ids: Any, *, softcap: float | None, reduction: str, filter_eps: Any = "high"
) -> Any:
    assert filter_eps in ("high", None)
    return cross_entropy(capped(F.linear(e, c), softcap), ids, reduction, -100)


def quack_linear(x: Any, weight: Any, ids: Any, *, ignore_index: int, reduction: str) -> Any:
    assert reduction in ("mean", "sum")
    return cross_entropy(F.linear(x, weight), ids, reduction, ignore_index)


def quack_logits(x: Any, ids: Any, *, ignore_index: int, reduction: str) -> Any:
    return cross_entropy(x, ids, reduction, ignore_index)


def verl(x: Any, weight: Any, ids: Any, temperature: float, reduction: str, group: Any) -> Any:
    assert (reduction, group) == ("none", None)
    assert bool((ids >= 0).all())  # it has no id to ignore
    return rows(x, weight, ids, temperature)


FAKES: dict[str, dict[str, Any]] = {
    "liger_kernel.ops.fused_linear_cross_entropy": {
        "LigerFusedLinearCrossEntropyFunction": LigerLinear
    },
    "liger_kernel.ops.cross_entropy": {"LigerCrossEntropyFunction": LigerLogits},
    "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90": {
        "LigerFusedScaledCrossEntropySM90Function": LigerScaled
    },
    "cut_cross_entropy": {"linear_cross_entropy": cce},
    "quack.linear_cross_entropy": {"chunked_linear_cross_entropy": quack_linear},
    "quack.cross_entropy": {"cross_entropy": quack_logits},
    "verl.utils.kernel.linear_cross_entropy": {"linear_cross_entropy": verl},
    "verl.utils.kernel.kernels": {},
}
PAIRS = [(name, op) for name, peer in peers.PEERS.items() for op in peer.ops]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every peer runs here, in place of its package a function of the same signature."""
    for name, content in FAKES.items():
        parts = name.split(".")
        for above in (".".join(parts[:n]) for n in range(1, len(parts))):
            if above not in sys.modules:
                monkeypatch.setitem(sys.modules, above, ModuleType(above))
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    anywhere = {n: replace(peer, devices=("cpu", "cuda")) for n, peer in peers.PEERS.items()}
    monkeypatch.setattr(peers, "PEERS", anywhere)
    if not LONG:  # which takes seconds a shape

        def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
            return function

        monkeypatch.setattr(torch, "compile", as_it_is)


# As a case of one option names it.
VALUES: dict[str, Any] = {
    "bias": "same",
    "mask": "bool",
    "ignore_index": 0,
    "temperature": 0.7,
    "softcap": 2.0,
    "logit_scale": 0.5,
    "return_entropy": True,
    "reduction": "sum",
    "label_smoothing": 0.1,
    "lse_square_scale": 0.001,
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_each_option_that_a_peer_has_is_passed_on(name: str, op: str) -> None:
    spec = rlk.check.specs.SPECS[op]
    for option in (peers.PEERS[name].ops[op].options | peers.ROWS) & VALUES.keys():
        chosen = {option: VALUES[option]}
        if "bias" in spec.defaults:
            chosen = {"bias": "none", **chosen}
        report = rlk.check.run(op, name, dtype="fp32", options=chosen, grad=True)
        assert [r.failure or r.status for r in report.results] == ["passed", "passed"], option
        assert option in spec.arguments(spec.build(report.results[0].case))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_what_a_peer_lacks_is_not_applicable(name: str, op: str) -> None:
    report = rlk.check.run(op, name, dtype="fp32", options="all")
    assert not report.failures(), [result.message for result in report.failures()]
    assert any(result.status == "not_applicable" for result in report.results)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", ["liger", "verl", "torch_compile"])
def test_inactive_rows_hold_anything(name: str) -> None:
    options = {"mask": "bool", "bias": "none"}
    report = rlk.check.run(candidate=name, dtype="fp32", input_mode="adversarial", options=options)
    garbage = [result for result in report.results if result.case.kind == "garbage"]
    assert [result.failure for result in garbage] == [None]


@pytest.mark.usefixtures("on_cpu")
def test_a_value_that_a_peer_lacks_is_not_applicable() -> None:
    report = rlk.check.run(
        candidate="verl", dtype="fp32", options={"temperature": "row", "bias": "none"}
    )
    (result,) = report.results
    assert result.status == "not_applicable"
    assert result.message == "the adapter does not take a temperature a row"


@pytest.mark.parametrize("name", [name for name in peers.NAMES if name != "torch_compile"])
def test_a_missing_package_is_misuse_with_what_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for top in ("liger_kernel", "cut_cross_entropy", "quack", "verl"):
        monkeypatch.setitem(sys.modules, top, None)
    peer = replace(peers.PEERS[name], devices=("cpu",))
    monkeypatch.setattr(peers, "PEERS", {**peers.PEERS, name: peer})
    with pytest.raises(Misuse, match=rf"^candidate: expected .*\(pip install {peer.install}\)"):
        rlk.check.run(peers.peer_ops(name)[0], name)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"candidate": "verl"}, "device: expected cuda for verl, got cpu"),
        ({"candidate": "verl", "op": "logp"}, "op: expected linear_logp for verl, got logp"),
        ({"candidate": "verl", "adapter": "by_name"}, "adapter: expected none for verl"),
        ({"candidate": "torch", "adapter": "by_name"}, "adapter: expected none for torch"),
        ({"candidate": "verl", "framework": "numpy"}, "framework: expected torch for verl"),
        ({"candidate": "flash"}, "candidate: expected rlk, torch, liger, .*, got flash"),
    ],
)
def test_misuse_names_the_argument(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(Misuse, match=f"^{named}"):
        rlk.check.run(**arguments)


@pytest.mark.usefixtures("on_cpu")
def test_the_report_has_the_versions(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"verl": "0.9.1", "triton": "3.6.0"}

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)
    report = rlk.check.run(candidate="verl", dtype="fp32", options={"bias": "none"})
    assert found.items() <= report.to_json()["versions"].items()
    assert rlk.check.report.summary(report).startswith(
        "linear_logp verl (verl 0.9.1, triton 3.6.0): 1 passed"
    )


@pytest.mark.usefixtures("on_cpu")
def test_all_means_every_op_that_a_peer_has(capsys: Any) -> None:
    sizes = ("--dtype", "fp32", "--quiet")
    assert cli.main(["--candidate", "quack", *sizes], isolated=False) == 0
    assert capsys.readouterr().out.startswith("linear_cross_entropy quack: ")
    cli.main(["--candidate", "quack", "--all", *sizes], isolated=False)
    said = capsys.readouterr().out.splitlines()
    ops = [line.split()[0] for line in said if line.split()[1].startswith("quack")]
    assert ops == ["logp", "linear_cross_entropy"]
