# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs that torch keeps on disk, met by another rlk or with another setting."""

import shutil
from pathlib import Path

import pytest
from processes import PACKAGE, run_python
from tensors import torch  # noqa: F401

pytestmark = pytest.mark.torch

# A call that is trained, by the function and by the operator's name: how many columns of
# exponentials are kept, the gradient, and how many graphs were found on disk and how many not.
CALLS = """
import torch, rlk
from rlk import operators

def by_name(*given):
    return torch.ops.rlk.linear_logp(*given)[0]

hidden = torch.linspace(-1, 1, 6 * 8).reshape(6, 8).requires_grad_()
weight = torch.nn.Parameter(torch.linspace(-2, 1, 520 * 8).reshape(520, 8))
found = []
for function in (rlk.jit.linear_logp, by_name):
    out = torch.compile(function, fullgraph=True)(hidden, weight, torch.arange(6))
    kept = [saved.shape[1] for saved in out.grad_fn.saved_tensors if saved.shape[-1:] > (520,)]
    (grad,) = torch.autograd.grad(out, hidden, torch.ones(6))
    found.append((kept, grad.tolist()))
counts = torch._dynamo.utils.counters["aot_autograd"]
report(found=found, counts=[counts[f"autograd_cache_{what}"] for what in ("hit", "miss")])
"""


def with_another_schema(folder: Path) -> Path:
    """A copy of the package, whose private operators take an argument by another name."""
    changed = folder / "rlk"
    changed.mkdir()
    for file in PACKAGE.iterdir():
        if file.name not in ("_ops", "__pycache__"):
            (changed / file.name).symlink_to(file)
    shutil.copytree(PACKAGE / "_ops", changed / "_ops", ignore=shutil.ignore_patterns("*.pyc"))
    source = changed / "_ops" / "torch_logp_operators.py"
    text = source.read_text()
    assert "kept_dtype" in text
    source.write_text(text.replace("kept_dtype", "dtype_of_kept"))
    return changed


def test_a_graph_of_another_rlk_or_setting_is_not_run(tmp_path):
    def run(package=None, **settings):
        kept = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "RLK_JIT": "off"}
        report = run_python(CALLS, package=package, **kept, **settings).report
        return report["found"], *report["counts"]

    want, *counts = run()
    assert want[0] == want[1]
    assert want[0][0], "nothing is kept"
    assert counts == [0, 2]
    assert run() == (want, 2, 0)
    assert run(with_another_schema(tmp_path)) == (want, 0, 2)
    assert run(RLK_SAVED_MIB="0")[0][0] == [[], want[0][1]]
