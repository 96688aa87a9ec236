# SPDX-License-Identifier: Apache-2.0
"""The run on a GPU (benchmarks/gpu), as far as it needs none."""

import json
import sys
import time

import pytest
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
OWN = ("gpu", "harness", "comparison")

# Stands in for a part's process: dies, or hangs, at a candidate unless it is left out.
STAND_IN = """
import json, os, sys, time
order = json.loads(sys.argv[sys.argv.index("--part") + 1])
job = order["job"]
for name in ("rlk", "peer that dies", "peer that hangs"):
    if name in job["without"]:
        continue
    open(job["progress"], "w").write(name)
    if name == "peer that dies":
        os.abort()
    if name == "peer that hangs":
        time.sleep(600)
open(order["result"], "w").write(json.dumps({"without": job["without"]}))
"""


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu import job, report, run

    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(run, "PROGRAM", str(program))
    yield run, report, job
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]


def test_candidate_that_ends_its_process_is_left_out(gpu, monkeypatch, tmp_path):
    run, _, job = gpu
    monkeypatch.setattr(run, "MOST_SECONDS", 2.0)
    found = run.ordered("main", job.Job(), tmp_path, time.monotonic() + 60)
    assert list(found["without"]) == ["peer that dies", "peer that hangs"]
    assert found["without"]["peer that dies"].startswith("exit status -6")
    assert found["without"]["peer that hangs"] == "not done after 2 s"


def test_part_that_always_dies_fails_alone(gpu, monkeypatch, tmp_path):
    run, _, job = gpu
    (tmp_path / "stand_in.py").write_text("raise SystemExit('no device')")
    found = run.ordered("main", job.Job(), tmp_path, time.monotonic() + 60)
    assert found["failed"] == "exit status 1: no device at the start"


def test_figures_name_what_was_missed_or_not_run(gpu):
    _, report, _ = gpu
    row = {"rows": 4096, "dim": 2048, "vocab": 131072, "dtype": "bfloat16", "which": "fwd"}
    runs = [
        row | {"candidate": "rlk", "ms": 6.3, "g_ms": 3.0, "ratio": 2.1, "max_error": 1e-6},
        row | {"candidate": "a peer", "ms": 4.5, "g_ms": 3.0, "ratio": 1.5},
        row | {"candidate": "rlk", "which": "fwd+bwd", "failed": "RuntimeError: no"},
    ]
    calls = {
        "rlk, no autograd 1x64x256": {"median_us": 9.0},
        "Triton launch": {"median_us": 10.0},
    }
    bits = [{"which": "fwd", "candidate": "rlk, generic", "same_bits": False}]
    parts = {
        "main": {"runs": runs},
        "host": {"calls": calls},
        "variants": {"runs": bits},
    }
    verdicts = {f.what: f for f in report.figures(parts, [{"spilled_bytes": 0}])}
    forward = verdicts["forward 4096x2048x131072"]
    assert (forward.verdict, forward.value) == ("no", 2.1)
    assert "best peer a peer 1.50 g" in forward.note
    both = verdicts["forward + backward 4096x2048x131072"]
    assert (both.verdict, both.note) == ("not run", "failed: RuntimeError: no")
    assert verdicts["host time of a warm call, no autograd"].verdict == "yes"
    assert verdicts["results with other bits, specialized, generic"].verdict == "no"
    assert verdicts["results with other bits, of each workspace"].verdict == "not run"
    assert verdicts["bytes spilled"].verdict == "yes"


def test_figures_of_backward_name_the_fastest_peer_and_other_budgets(gpu):
    _, report, _ = gpu
    row = {"rows": 64, "dim": 32, "vocab": 512, "dtype": "bfloat16", "which": "fwd+bwd"}
    rlk = row | {"candidate": "rlk", "ms": 4.0, "g_ms": 1.0, "ratio": 4.1, "extra_mib": 512.0}
    nothing = row | {"candidate": "rlk, saved_mib=0", "ms": 5.0, "g_ms": 1.0, "ratio": 5.1}
    slow = row | {"candidate": "slow", "ms": 9.0, "g_ms": 1.0, "ratio": 9.1}
    fast = row | {"candidate": "fast", "ms": 3.0, "g_ms": 1.0, "ratio": 3.1}
    late = row | {"rows": 128, "candidate": "all", "failed": "not begun: 60 s were over"}
    parts = {
        "backward": {"runs": [rlk, nothing, late]},
        "backward_peers": {"runs": [slow, fast, rlk]},
    }
    found = {figure.what: figure for figure in report.backward_figures(parts)}
    alone = found["forward + backward 64x32x512"]
    assert alone.value == 4.1
    assert alone.note == "4.000 ms, g 1.000 ms, 512 MiB; saved_mib=0: 5.10 g"
    beside = found["forward + backward 64x32x512, beside peers"]
    assert (beside.value, beside.note.split("; ")[1]) == (4.1, "best peer fast 3.10 g")
    not_begun = found["forward + backward 128x32x512"]
    assert (not_begun.value, not_begun.note) == (None, "failed: not begun: 60 s were over")


def test_number_that_is_none_is_printed(gpu, capsys):
    _, report, _ = gpu
    row = {"rows": 64, "dim": 32, "vocab": 512, "dtype": "bfloat16", "which": "fwd+bwd"}
    times = {"ms": 4.0, "g_ms": 1.0, "ratio": 4.0}
    runs = [row | times | {"candidate": "a peer", "max_error": float("nan")}]
    report.print_runs("backward", runs)
    assert "nan" in capsys.readouterr().out.splitlines()[3].split()


@pytest.mark.torch
def test_backward_measures_every_candidate(gpu, monkeypatch):
    pytest.importorskip("torch")
    _, _, job = gpu
    from gpu import backward

    shape = (64, 1024, 16385)
    monkeypatch.setattr(backward, "EVERYTHING_MIB", {shape: 1})
    monkeypatch.setattr(backward, "ACCUMULATED", (shape,))
    part = json.loads(json.dumps(backward.own(job.Job("cpu"))))
    found = {run["candidate"]: run for run in part["runs"]}
    budgets = ("rlk, saved_mib=0", "rlk, saved_mib=1")
    others = (backward.HALF, backward.FROZEN, backward.ACCUMULATE)
    products = (backward.THREE, backward.PRODUCT_64)
    assert set(found) == {"rlk", backward.FORWARD, *budgets, *others, *products}
    assert all(run["ratio"] > 0 and len(run["samples_ms"]) >= 3 for run in found.values())
    assert all(found[name]["same_bits"] for name in budgets)
    for name in ("rlk", *budgets, *others):
        assert found[name]["max_error"] < 1e-5
        assert found[name]["max_error_grad_hidden"] < 2**-8
        if name != backward.FROZEN:
            assert found[name]["max_error_grad_weight"] < 2**-8
    # Nothing rounds that sum to 16 bits.
    assert found[backward.ACCUMULATE]["max_error_grad_weight"] < 1e-4
    assert "max_error_grad_weight" not in found[backward.FROZEN]


@pytest.mark.torch
def test_backward_says_which_peers_did_not_run(gpu, monkeypatch):
    pytest.importorskip("torch")
    _, _, job = gpu
    from gpu import backward, shapes

    def breaks(hidden, weight, target):
        raise RuntimeError("not today")

    def hangs(hidden, weight, target):
        time.sleep(600)

    def absent():
        raise ImportError("no such package")

    shape = (64, 1024, 16384)
    entries = [
        shapes.rlk_entry(),
        shapes.Entry("breaks", lambda: breaks),
        shapes.Entry("hangs", lambda: hangs),
        shapes.Entry("absent", absent),
        shapes.Entry("died", absent),
    ]
    monkeypatch.setattr(backward, "WITH_PEERS", (shape, shape))
    monkeypatch.setattr(backward, "EVERYTHING_MIB", {shape: 1})
    monkeypatch.setattr(backward, "FIRST_SECONDS", 5.0)
    monkeypatch.setattr(backward, "PEERS_SECONDS", 0.0)
    monkeypatch.setattr(backward, "everybody", lambda: entries)
    order = job.Job("cpu", without={"died": "exit status -6"})
    runs = backward.against_peers(order)["runs"]
    found = {run["candidate"]: run for run in runs}
    assert found["rlk"]["ratio"] > 0
    assert found["breaks"]["failed"] == "RuntimeError: not today"
    assert found["hangs"]["failed"] == "TimeoutError: not done after 5 s"
    assert found["absent"]["absent"] == "ImportError: no such package"
    assert found["died"]["failed"] == "exit status -6"
    assert found["all"]["failed"] == "not begun: 0 s were over"


@pytest.mark.torch
def test_rehearsal_measures_and_compares(gpu, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    _, _, job = gpu
    from gpu import shapes

    def breaks(hidden, weight, target):
        raise RuntimeError("not today\nnor tomorrow")

    def off_by_a_bit(hidden, weight, target):
        return torch.log_softmax(hidden @ weight.T, -1).gather(-1, target[:, None])[:, 0].float()

    def absent():
        raise ImportError("no such package")

    entries = [
        shapes.rlk_entry(),
        shapes.rlk_entry("rlk, generic", specialize=False),
        shapes.Entry("rlk, wrong", lambda: off_by_a_bit),
        shapes.Entry("breaks", lambda: breaks),
        shapes.Entry("absent", absent),
        shapes.Entry("died", absent),
    ]
    order = job.Job("cpu", without={"died": "exit status -6"})
    rows = shapes.measure_shape(order, (64, 1024, 16385), entries, ("fwd",))
    found = {row["candidate"]: row for row in json.loads(json.dumps(rows))}
    assert found["rlk"]["ratio"] > 0
    assert found["rlk"]["max_error"] < 1e-5 < found["rlk, wrong"]["max_error"]
    assert found["rlk, generic"]["same_bits"]
    assert not found["rlk, wrong"]["same_bits"]
    assert found["breaks"]["failed"] == "RuntimeError: not today"
    assert found["absent"]["absent"] == "ImportError: no such package"
    assert found["died"]["failed"] == "exit status -6"
    assert "product, V not padded" in found
