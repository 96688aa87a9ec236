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
