# SPDX-License-Identifier: Apache-2.0
"""The checker must bite: every planted defect is found under its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import broken
import broken_det_gemm
import broken_logp
import broken_losses
import broken_ranks
import broken_ratio_kl
import numpy as np
import pytest
from long_run import LONG

import rlk
import rlk.check
from rlk.check import contract, runner
from rlk.check.candidates import from_function
from rlk.check.checks import Session
from rlk.check.ranks import Ranks
from rlk.check.report import line
from rlk.check.spec import Adapter
from rlk.check.specs import SPECS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are wanted here

REFERENCES = {
    "linear_logp": (broken.Reference, broken.BROKEN),
    "logp": (broken_logp.Logp, broken_logp.BROKEN),
    "ppo_loss": (broken_losses.Loss, broken_losses.BROKEN),
    "ratio_kl": (broken_ratio_kl.RatioKl, broken_ratio_kl.BROKEN),
    "det_gemm": (broken_det_gemm.Product, broken_det_gemm.BROKEN),
}
PLANTED = [(op, *planted) for op, (_, defects) in REFERENCES.items() for planted in defects.items()]
# What a reference takes that does not take all options.
OF_PPO = "loss_mask eps_clip_low eps_clip_high use_dual_clip clip_ratio_c kl_coef ref_log_probs"
TAKES = {
    "ppo_loss": frozenset({*OF_PPO.split(), "global_tokens", "loss_weights"}),
    "ratio_kl": frozenset({"temperature", "ignore_index"}),
}


def failing(op: str, defect: Any) -> Iterator[Any]:
    """What fails of the suite in float32."""
    spec = SPECS[op]
    candidate = from_function(spec, type(defect).__name__, defect)
    if op in TAKES:
        candidate.adapter = Adapter(lambda function, a: function(**a), TAKES[op])
    session = Session(spec, candidate, contract.load(), None)
    for job in runner.suite_jobs(spec, candidate, ["float32"], 0, runner.Shared()):
        if op not in TAKES or job.name != "option_liveness":
            result = runner.run_job(session, job)
            if result.failed:
                yield result


def expect_named(op: str, defect: Any, names: Any) -> None:
    """The suite fails by one of these names; where there is none, it passes."""
    found = set()
    for result in failing(op, defect):
        found.add(result.failure)
        if result.failure in names:
            return
    assert not names, f"expected one of {names}, got {found}"
    assert not found


@pytest.mark.parametrize(
    ("op", "defect", "names"), PLANTED, ids=[f"{op}-{defect.__name__}" for op, defect, _ in PLANTED]
)
def test_a_planted_defect_is_named(op: str, defect: type[Any], names: Any) -> None:
    assert names
    expect_named(op, defect(), names)


@pytest.mark.parametrize("op", REFERENCES)
def test_the_correct_reference_passes_the_suite(op: str) -> None:
    reference = REFERENCES[op][0]()
    if LONG and op not in TAKES:
        found = rlk.check.run(op, candidate=reference, suite=True).failures()
    else:
        found = list(failing(op, reference))
    assert not found, "\n".join(map(line, found))


def test_no_false_alarm_on_random_cases() -> None:
    report = rlk.check.run(candidate=broken.Reference(), random=2000 if LONG else 200)
    assert report.ok, "\n".join(map(line, report.failures()))


def test_advantages() -> None:
    options = {"framework": "numpy", "suite": True, "dtype": "fp32"}
    assert rlk.check.run("group_advantages", broken_losses.advantages, **options).ok
    for defect, kind in (
        (broken_losses.one_pass_variance, "offset"),
        (broken_losses.noise_of_equal_rewards, "equal"),
    ):
        report = rlk.check.run("group_advantages", defect, **options)
        found = {result.case.kind for result in report.failures()}
        assert kind in found, found


@pytest.mark.parametrize("op", ["ppo_loss", "grpo_loss"])
def test_torch_loses_what_the_page_says(op: str) -> None:
    """Eager PyTorch multiplies by the mask and rounds as it likes; it is no reference."""
    pytest.importorskip("torch")
    report = rlk.check.run(op, "torch", dtype="fp32", grad=True)
    assert report.ok, "\n".join(map(line, report.failures()))
    report = rlk.check.run(op, "torch", dtype="fp32", input_mode="adversarial", grad=True)
    assert "garbage" in {result.case.kind for result in report.failures()}


@pytest.mark.parametrize("kl", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("kl_gradient", ["pathwise", "unbiased", "importance"])
def test_the_reference_has_every_estimator_of_ratio_kl(kl: str, kl_gradient: str) -> None:
    pytest.importorskip("torch")
    for clamp in ({}, {"kl_clamp": 0.25}):
        options = {"kl": kl, "kl_gradient": kl_gradient, **clamp}
        report = rlk.check.run("ratio_kl", "torch", dtype="fp32", grad=True, options=options)
        assert report.ok, report.failures()


def test_options_of_a_case_are_read_from_text() -> None:
    for op, name, text, value in (
        ("grpo_loss", "beta", "0.1", 0.1),
        ("grpo_loss", "kl_estimator", "k1", "k1"),
        ("grpo_loss", "use_dual_clip", "True", True),
        ("grpo_loss", "softcap", "2.5", 2.5),
        ("ppo_loss", "use_tis", "True", True),
        ("ppo_loss", "eps_clip_low", "0.1", 0.1),
        ("ppo_loss", "samples_per_prompt", "4", 4),
    ):
        found = SPECS[op].option_values[name](text)
        assert (found, type(found)) == (value, type(value))
    with pytest.raises(ValueError, match="True or False"):
        SPECS["ppo_loss"].option_values["use_tis"]("yes")


# --- ranks that share a vocabulary: rlk's own with defects planted in it -------------------------

ON_RANKS = [
    *((op, defect, dtype) for defect, (op, dtype) in broken_ranks.BROKEN.items()),
    *(("logp", defect, "float32") for defect in broken_ranks.OF_LOGITS),
]


def of_degrees(op: str, ranks: Ranks, dtype: str) -> Iterator[Any]:
    """What the transform over degrees says of each case that it runs on."""
    spec = SPECS[op]
    made = from_function(spec, type(ranks).__name__, broken_ranks.candidate(op, ranks))
    session = Session(spec, made, contract.load(), None)
    for case in spec.invariance_cases(dtype, 0):
        jobs = list(runner.invariance_jobs(spec, made, case))
        assert jobs[-1].name == "invariance degrees"
        yield runner.run_job(session, jobs[-1])


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize(
    ("op", "defect", "dtype"), ON_RANKS, ids=[f"{op}-{d.__name__}" for op, d, _ in ON_RANKS]
)
def test_a_defect_planted_over_ranks_is_named(op: str, defect: type[Ranks], dtype: str) -> None:
    found = {result.failure for result in of_degrees(op, defect(op), dtype)}
    assert found == {"degree_variant"}, found


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("op", ["linear_logp", "logp"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_defect_over_ranks(op: str, dtype: str) -> None:
    found = list(of_degrees(op, Ranks(op), dtype))
    assert len(found) == len(SPECS[op].invariant)
    assert not [line(result) for result in found if result.failed]


@pytest.mark.usefixtures("generic")
def test_a_candidate_that_leaves_a_value_out() -> None:
    class Forgets(Ranks):
        def __call__(self, *given: Any) -> dict[str, Any]:
            return {**super().__call__(*given), "weight": None}

    failures = {
        result.failure for result in of_degrees("linear_logp", Forgets("linear_logp"), "float32")
    }
    assert failures == {"arity"}


# --- grpo_loss: rlk's own with defects planted around it ------------------------------------------

Arguments = dict[str, Any]


def planted(change: Callable[[Arguments], Arguments], slope: Callable[[Arguments], float]) -> Any:
    """rlk's own on changed arguments, its gradient times `slope` of the true ones."""

    def function(**arguments: Any) -> Any:
        return rlk.jit.grpo_loss(**change(arguments))

    def backward(grad_output: Any, *, needs: Any, **arguments: Any) -> Any:
        grad = rlk.jit.grpo_loss_backward(grad_output, **change(arguments))
        return ((grad * slope(arguments)).astype(grad.dtype),)

    function.framework = "numpy"  # type: ignore[attr-defined]
    function.backward = backward  # type: ignore[attr-defined]
    return function


def same(a: Arguments) -> Arguments:
    return a


def unmasked(a: Arguments) -> Arguments:
    return {**a, "completion_mask": None, "ignore_index": None}


def swapped(a: Arguments) -> Arguments:
    return {**a, "policy_logits": a["ref_logits"], "ref_logits": a["policy_logits"]}


def one_group(a: Arguments) -> Arguments:
    return {**a, "samples_per_prompt": len(a["rewards"]) or 1, "group_boundaries": None}


def no_beta(a: Arguments) -> Arguments:
    return {**a, "beta": 0.04 * (a.get("beta", 0.04) != 0)}


def in_one_chain(a: Arguments) -> Arguments:
    """Log-probs of the policy that are off by the error of such a sum."""
    x = np.asarray(a["policy_logits"], np.float64)
    terms = np.exp(x - x.max(-1, keepdims=True))
    off = np.log(broken.added_in_one_chain(terms.astype(np.float32)) / terms.sum(-1))
    return {**a, "old_logps": np.asarray(a["old_logps"] + off, np.float32)}


DEFECTS: dict[str, tuple[Any, Any, set[str]]] = {
    "unmasked": (unmasked, lambda a: 1.0, {"accuracy", "raised", "nonfinite"}),
    "swapped": (swapped, lambda a: 1.0, {"accuracy"}),
    "one_group": (one_group, lambda a: 1.0, {"accuracy"}),
    "no_beta": (no_beta, lambda a: 1.0, {"accuracy", "option_dead"}),
    "in_one_chain": (in_one_chain, lambda a: 1.0, {"accuracy"}),
    "no_temperature": (same, lambda a: float(a.get("temperature", 1.0)), {"grad_accuracy"}),
    "twice": (same, lambda a: 2.0, {"grad_accuracy"}),
    "none": (same, lambda a: 1.0, set()),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_planted_in_grpo_loss_is_named(name: str) -> None:
    change, slope, words = DEFECTS[name]
    expect_named("grpo_loss", planted(change, slope), words)
