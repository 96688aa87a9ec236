# SPDX-License-Identifier: Apache-2.0
"""peer_tests.py NAME FILE: a peer's own test of a vocabulary that ranks share, run with rlk in the
place of what it tests. Not part of any suite: FILE is in a folder with the peer's source, which
nothing here fetches, and needs GPUs.

    python -m torch.distributed.run --nproc-per-node=2 peer_tests.py NAME FILE
        verl   tests/utils/test_special_linear_cross_entropy_tp.py
        areal  tests/torchrun/run_vocab_parallel.py
    python peer_tests.py NAME FILE
        verl   tests/utils/test_linear_cross_entropy.py
        liger  its test of LigerFusedLinearScaledCrossEntropyTPFunction

rlk must be importable (`./dev exec python ...`). What a peer imports besides becomes a stand-in.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sources

ABSENT = {
    "verl": "codetiming hydra omegaconf packaging peft pybind11 ray tensordict torchdata"
    " transformers",
    "areal": "aiofiles aiohttp colorlog datasets einops fastapi flask httpx hydra lark numba"
    " omegaconf openai orjson PIL psutil pybase64 pydantic ray requests swanlab tenacity"
    " tensorboardX torchdata tqdm trackio transformers uvicorn uvloop wandb werkzeug yaml",
}
#: Liger's tests start processes that import its package anew: it is this one.
LIGER = {
    "__init__.py": "",
    "ops/__init__.py": """
import rlk


class LigerFusedLinearScaledCrossEntropyTPFunction:
    @staticmethod
    def apply(x, weight, target, group, heat=1.0, ignore_index=-100, m_tiles=1, entropy=False):
        options = {"temperature": heat, "ignore_index": ignore_index, "group": group}
        out = rlk.jit.linear_logp(x, weight, target, return_entropy=True, **options)
        return (-out.log_prob, out.entropy) if entropy else -out.log_prob
""",
    "ops/fused_linear_scaled_cross_entropy.py": "",
    "ops/cute/__init__.py": "",
    "ops/cute/fused_linear_scaled_cross_entropy_tp.py": "is_available = bool",
}


def verl() -> None:
    kernel = sources.load("verl.utils.kernel.linear_cross_entropy", ABSENT["verl"])
    from rlk.integrations.verl import linear_cross_entropy

    kernel.linear_cross_entropy = linear_cross_entropy


def areal() -> None:
    theirs = sources.load("areal.utils.functional.vocab_parallel", ABSENT["areal"])
    import rlk

    def log_probs(logits: Any, labels: Any, group: Any, temperature: float = 1.0) -> Any:
        return rlk.jit.logp(logits, labels, temperature=temperature, group=group)

    def with_entropy(logits: Any, labels: Any, group: Any, temperature: float = 1.0) -> Any:
        options = {"temperature": temperature, "return_entropy": True, "group": group}
        out = rlk.jit.logp(logits, labels, **options)
        return out.log_prob, out.entropy

    theirs._vocab_parallel_logprobs = log_probs
    theirs._vocab_parallel_logprobs_entropy = with_entropy


def liger(file: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in LIGER.items():
            path = Path(folder, "liger_kernel", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        # Its fallback has no other tests than those of all ranks and of groups.
        return int(pytest.main([file, "-q", "-p", "no:cacheprovider", "-k", "fallback"]))


def main(name: str, file: str) -> int:
    if name == "liger":
        return liger(file)
    root = next(p for p in Path(file).resolve().parents if (p / name).is_dir())
    sys.path.insert(0, str(root))
    logging.raiseExceptions = False  # a stand-in formats no line
    {"verl": verl, "areal": areal}[name]()
    runpy.run_path(file, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
