# SPDX-License-Identifier: Apache-2.0
"""Processes and the cache: compile once, run without a compiler, fall back with one warning."""

import pytest
from devices import expected_target
from on_device import run_script
from processes import entries, run_python

pytestmark = pytest.mark.gpu

# One forward and one backward, what ran, and the bits.
CALLS = """
import hashlib
operands = tensors()
logp = rlk.jit.linear_logp(*operands)
grads = rlk.jit.linear_logp_backward(torch.ones(32, device=DEVICE), *operands)
bits = [hashlib.sha256(t.float().cpu().numpy().tobytes()).hexdigest() for t in (logp, *grads[:2])]
explained = rlk.jit.explain(rlk.jit.linear_logp, *operands)
report(bits=bits, kernel=explained.kernel, variant=explained.variant)
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache folder that one process has filled, and what that process said."""
    folder = tmp_path_factory.mktemp("warm")
    return folder, run_script(CALLS, RLK_CACHE_DIR=str(folder))


def test_a_second_process_compiles_nothing(warm):
    folder, first = warm
    assert (first.report["compiles"], first.report["disk_hits"]) == (2, 0)
    assert first.report["kernel"].startswith("linear_logp.fwd[x=bf16 V=300 D=40")
    assert first.report["kernel"].endswith(f"@{expected_target()}")
    assert first.report["variant"] == "specialized"
    assert len(entries(folder)) == 2
    second = run_script(CALLS, RLK_CACHE_DIR=str(folder))
    assert (second.report["compiles"], second.report["disk_hits"]) == (0, 2)
    assert second.report["bits"] == first.report["bits"]
    assert first.warnings == second.warnings == []


def test_off_runs_the_generic_kernels(warm, tmp_path):
    cache = tmp_path / "cache"
    ended = run_script(CALLS + CALLS, RLK_JIT="off", RLK_CACHE_DIR=str(cache))
    last = ended.reports[-1]
    assert last["compiles"] == 0
    assert last["fallbacks"] >= 2
    assert last["variant"] == "generic"
    assert last["kernel"].endswith(f"@{expected_target()}")
    assert last["bits"] == warm[1].report["bits"]
    assert ended.warnings == []  # it is what was asked for
    assert not cache.exists()


def test_a_missing_compiler_is_one_warning(warm, tmp_path):
    missing = str(tmp_path / "libnvrtc.so.12")
    ended = run_script(CALLS + CALLS, RLK_NVRTC=missing, RLK_CACHE_DIR=str(tmp_path / "cache"))
    last = ended.reports[-1]
    assert last["compiles"] == 0
    assert last["fallbacks"] >= 2
    assert last["variant"] == "generic"
    assert last["bits"] == warm[1].report["bits"]
    assert len(ended.warnings) == 1
    assert missing in ended.warnings[0]


def test_a_warm_cache_needs_no_compiler(warm, tmp_path):
    folder, first = warm
    missing = str(tmp_path / "libnvrtc.so.12")
    ended = run_script(CALLS, RLK_NVRTC=missing, RLK_CACHE_DIR=str(folder))
    assert (ended.report["disk_hits"], ended.report["fallbacks"]) == (2, 0)
    assert ended.report["variant"] == "specialized"
    assert ended.report["bits"] == first.report["bits"]


def test_settings_touch_no_driver():
    ended = run_python(
        """
        import rlk
        rlk.jit.configure(specialize=False, workspace_mib=64)
        rlk.jit.settings()
        report(driver=any("libcuda" in line for line in open("/proc/self/maps")))
        """
    )
    assert not ended.report["driver"]
