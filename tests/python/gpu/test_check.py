# SPDX-License-Identifier: Apache-2.0
"""The checker on the device: rlk's kernels pass, broken ones are named."""

import pytest
from devices import expected_target
from on_device import DEVICE
from tensors import torch

import rlk.check
from rlk.check import contract, transforms
from rlk.check.case import Case
from rlk.check.checks import Session
from rlk.check.corpus import known_bugs
from rlk.check.peers import NAMES, peer_candidate, peer_ops
from rlk.check.report import line
from rlk.check.rlk_candidate import rlk_candidate
from rlk.check.runner import Job, run_job
from rlk.check.specs import SPECS
from rlk.check.specs.linear_logp import torch_linear_logp

pytestmark = pytest.mark.gpu


def check(candidate="rlk", **options):
    return rlk.check.run(candidate=candidate, device=DEVICE.type, **options)


def test_rlk_passes_with_every_option():
    sizes = {"vocab": 300, "hidden": 40, "seq": 20}  # those of other tests, compiled already
    report = check(dtype="bf16", options="all", grad=True, **sizes)
    assert report.ok, "\n".join(line(failure) for failure in report.failures())
    assert {result.variant for result in report.results} == {"generic", "specialized"}
    assert report.target == expected_target()
    assert all(f"@{report.target}" in result.kernel["name"] for result in report.results)
    gpu = report.to_json()["device"]["gpu"]
    assert gpu == torch.cuda.get_device_name()


def test_hard_inputs_and_transforms():
    for dtype in ("fp32", "fp16", "bf16"):
        options = {"dtype": dtype, "variant": "generic", "grad": True}
        hard = check(input_mode="adversarial", **options)
        assert hard.ok, "\n".join(line(failure) for failure in hard.failures())
        small = check(invariance=True, batch=2, seq=40, vocab=400, hidden=40, **options)
        assert small.ok, "\n".join(line(failure) for failure in small.failures())


@pytest.mark.parametrize(("op", "count"), [("linear_grpo_loss", 12), ("linear_ppo_loss", 83)])
def test_random_losses_whose_gradients_are_far_apart(op, count):
    """In fp16 the weight's gradient loses bits of rows far below the largest, within its bound."""
    report = check(op=op, random=count, seed=700000, variant="generic")
    assert report.ok, "\n".join(line(failure) for failure in report.failures())


def test_settings_are_put_back():
    before = rlk.jit.settings()
    check(dtype="fp32", variant="generic")
    assert rlk.jit.settings() == before


def test_broken_kernels_are_named():
    def good(**a):
        return torch_linear_logp(**a)

    def bias_twice(**a):
        return torch_linear_logp(**a | {"bias": None if a.get("bias") is None else 2 * a["bias"]})

    def unwritten(out, **a):
        out.view(-1)[:-1] = torch_linear_logp(**a).view(-1)[:-1]
        return out

    def fails(**a):
        raise RuntimeError("no such kernel")

    for kernel, failure in (
        (good, None),
        (bias_twice, "accuracy"),
        (unwritten, "unwritten"),
        (fails, "raised"),
    ):
        report = check(kernel, dtype="fp32", options={})
        assert [result.failure for result in report.results] == [failure], kernel.__name__


@pytest.mark.parametrize("op", ["linear_logp", "logp", "ppo_loss", "det_gemm", "linear_ppo_loss"])
def test_forced_grids_give_the_same_bits(op):
    spec = SPECS[op]
    case = Case(op, "bfloat16", (2, 1), {"vocab": 50257, "hidden": 256}, options={"bias": "none"})
    candidate = rlk_candidate(spec, "cuda", None, "generic", None)
    session = Session(spec, candidate, contract.load(), None)
    for rows in (1, 3, 65):
        job = Job("blocks", transforms.check("blocks"), case.but(lead=(2, rows)))
        with candidate.scope():
            result = run_job(session, job)
        assert result.passed, line(result)
    assert rlk.jit.settings()["max_sms"] == 0


@pytest.mark.parametrize("op", dict.fromkeys(bug.op for bug in known_bugs("all")))
def test_no_known_bug(op):
    report = rlk.check.run(op, corpus="all", variant="generic", device="cuda")
    assert report.ok, "\n".join(map(line, report.failures()))


def peers_here():
    """Each peer whose package is installed, with an op of it."""
    for name in NAMES:
        op = peer_ops(name)[0]
        try:
            peer_candidate(SPECS[op], name, "cuda")
        except rlk.check.Misuse:
            continue
        yield name, op


def test_peers_that_are_installed_are_called_rightly():
    """Nothing but fp16's logits is off: the arguments are those that the package takes."""
    for name, op in peers_here():
        given = {"dtype": "bf16", "batch": 2, "seq": 64, "vocab": 4096}
        options = {}
        if op != "logp":
            given["hidden"], options["bias"] = 256, "none"
        report = rlk.check.run(op, name, device="cuda", options=options, **given)
        (result,) = report.results
        assert result.failure in (None, "accuracy"), line(result)
        assert result.max_abs < 0.2, line(result)


LINEAR_LOSSES = ("linear_ppo_loss", "linear_grpo_loss", "linear_cross_entropy")


@pytest.mark.parametrize("op", ["ratio_kl", "grpo_loss", *LINEAR_LOSSES])
def test_the_suite_passes(op):
    for dtype in ("fp32", "bf16"):
        report = rlk.check.run(op, suite=True, dtype=dtype, variant="generic", device="cuda")
        assert report.ok, "\n".join(map(line, report.failures()))
