# SPDX-License-Identifier: Apache-2.0
"""What a release ships so that a first step compiles nothing, on a head of a moment."""

import re
import subprocess
import sys
from pathlib import Path

import devices
import pytest
from paths import ROOT
from processes import run_python

from rlk import _cli

HEAD = "V=331,D=64"
LOSSES = ROOT / "release/losses.txt"

# The steps of a trainer whose kernels a release has, on `device`.
STEPS = """
import torch, rlk
torch.manual_seed(0)

def real(*shape):
    return torch.randn(shape, device=device).bfloat16().requires_grad_()

hidden, weight, ids = real(4, 6, 64), real(331, 64), torch.randint(331, (4, 6), device=device)
mask, rewards = torch.ones(4, 6, device=device), torch.rand(4, device=device)
with torch.no_grad():
    old = rlk.jit.linear_logp(hidden, weight, ids, mask=mask)
for options in (
    {"beta": 0.0},
    {"ref_logps": old},
    {"ref_hidden": hidden.detach(), "ref_weight": weight.detach()},
    {"beta": 0.0, "dialect": "trl"},
    {"beta": 0.0, "dialect": "verl"},
):
    loss, _, _ = rlk.jit.linear_grpo_loss(
        hidden, weight, ids, old, rewards, mask, samples_per_prompt=2, **options)
    loss.backward()
now = rlk.jit.linear_logp(hidden, weight, ids, mask=mask, return_entropy=True)
rlk.jit.ppo_loss(now.log_prob, old, torch.ones(4, 6, device=device), mask).loss.backward()
rlk.jit.linear_cross_entropy(hidden, weight, ids, mask=mask).backward()
rlk.jit.wait()
report()
"""


def make_pack(pack: Path, folder: Path, arch: str, head: str = HEAD) -> None:
    words = [sys.executable, ROOT / "release/make_pack.py", pack, folder, "--arch", arch]
    done = subprocess.run([*words, "--head", head], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def rlk_jit(*arguments: str) -> None:
    subprocess.run(_cli.command(list(arguments)), check=True, capture_output=True)


@pytest.mark.torch
def test_with_the_pack_a_first_step_compiles_nothing(device, tmp_path):
    pack, layer, trace = tmp_path / "a.pack", tmp_path / "kernels", tmp_path / "trace.txt"
    make_pack(pack, tmp_path / "made", devices.expected_target(device))
    rlk_jit("--cache-dir", str(layer), "import", str(pack))
    told = run_python(
        f"device = {devices.torch_name()!r}" + STEPS,
        RLK_CACHE_DIR=str(tmp_path / "cache"),
        RLK_CACHE_PATH=str(layer),
        RLK_TRACE=str(trace),
    ).report
    assert (told["compiles"], told["fallbacks"], told["alternatives"]) == (0, 0, 0)
    # And losses.txt names what was asked for and nothing else.
    names = {line.partition("@")[0] for line in trace.read_text().splitlines()}
    asked = {name for name in names if not re.search(r"^linear_logp|generic", name)}
    listed = [line.partition("#")[0].strip() for line in LOSSES.read_text().splitlines()]
    assert asked == {line for line in listed if line}


def test_a_pack_made_again_has_the_same_bytes(tmp_path):
    """No time is in it, no folder, and nothing else that the folder has."""
    packs = [tmp_path / f"{name}.pack" for name in "abc"]
    make_pack(packs[0], tmp_path / "here", "x86-64-v3")
    make_pack(packs[1], tmp_path / "there", "x86-64-v3", "V=77,D=8")
    make_pack(packs[2], tmp_path / "there", "x86-64-v3")
    first, other, again = (pack.read_bytes() for pack in packs)
    assert first == again != other
    assert b'"name":' in first
    assert b'"created":' not in first
