# SPDX-License-Identifier: Apache-2.0
"""The quick starts: every block is run, on the CPU, and does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

import rlk

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"quick_start_{page}.md").read_text(encoding="utf-8")
    found = [body for name, body in BLOCK.findall(text) if name == language]
    assert found
    return found


@pytest.fixture
def shell(tmp_path: Path):
    """Runs a script in an empty folder, with the programs of rlk on PATH and a cache of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("rlk-jit", "rlk._cli"), ("rlk-check", "rlk.check.cli")):
        code = f"import sys; from {module} import main; sys.exit(main())"
        (programs / name).write_text(f"#!/bin/bash\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
        (programs / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RLK_")}
    kept |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    kept["RLK_CACHE_DIR"] = str(tmp_path / "cache")

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=kept,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.mark.usefixtures("generic")
def test_a_trainer(capsys) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    space: dict = {}
    for block in blocks("trainer", "python"):
        exec(block, space)
    assert space["hidden"].grad.abs().sum() > 0
    assert space["lm_head"].weight.grad.abs().sum() > 0
    printed = capsys.readouterr().out
    assert "use_dual_clip" in printed  # of the two dialects
    assert "linear_logp.fwd[" in printed

    # "a ratio of the first step is exactly 1": no graph, other batches.
    hidden, ids = space["hidden"], space["ids"]
    with torch.no_grad():
        old = [
            rlk.jit.linear_logp(h, space["lm_head"].weight, t, temperature=0.7)
            for h, t in zip(hidden[:, :-1], ids[:, 1:], strict=True)
        ]
    assert torch.equal(torch.stack(old), space["log_probs"])
    assert space["metrics"].ratio_min == space["metrics"].ratio_max == 1


def test_a_cluster(shell, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 320, "hidden_size": 64}')
    level = rlk.jit.settings()["arch"]
    script = "\n".join(blocks("infra", "sh"))
    # No CUDA kernel is compiled here, which takes a minute: test_deployment does so.
    printed = shell(script.replace("sm_90a", level).replace("V=128256,D=4096", "V=330,D=64"))
    assert (tmp_path / "kernels.pack").is_file()
    assert f"linear_logp.fwd[x=bf16 V=320 D=64]@{level}" in printed
    code = "\n".join(blocks("infra", "python"))
    code += "print(rlk.jit.cache_info().loaded)"
    (tmp_path / "preload.py").write_text(code)
    assert int(shell(f"{sys.executable} preload.py")) > 0


def test_a_kernel(shell, tmp_path: Path) -> None:
    (source,) = blocks("kernels", "python")
    assert source.startswith("# mine.py\n")
    (tmp_path / "mine.py").write_text(source)
    check, look, build = blocks("kernels", "sh")
    assert build.startswith("./dev test")
    first, second = check.splitlines()
    assert "2 passed, 0 failed" in shell(f"PYTHONPATH=.:$PYTHONPATH\n{first}")
    printed = shell(f"PYTHONPATH=.:$PYTHONPATH\n{second}")
    assert "'mask'" in printed
    assert "'temperature'" in printed
    assert "target -1" in printed
    shell(look)
