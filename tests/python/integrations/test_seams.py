# SPDX-License-Identifier: Apache-2.0
"""patch() of five integrations on stand-ins for the systems, and the log-probs behind it."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rlk.integrations import areal, liger, nemo_rl, prime_rl, slime  # noqa: E402

pytestmark = pytest.mark.usefixtures("generic")

N, V, D = 6, 23, 8
OURS = {m.__name__.rpartition(".")[2]: m for m in (areal, liger, nemo_rl, prime_rl, slime)}


def stand_in(parameters: str) -> Any:
    names: dict[str, Any] = {}
    exec(f"def function({parameters.replace(',', '=None,')}=None): return 'theirs'", names)
    return names["function"]


@pytest.fixture(params=OURS.values(), ids=OURS)
def patched(request, monkeypatch):
    """An integration that is switched on, and what a path of its seams leads to."""
    seams = request.param._PATCH.seams

    def module(name: str) -> ModuleType:
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            if "." in name:
                module(name.rpartition(".")[0])
        return sys.modules[name]

    def owner(path: str) -> Any:
        name, _, names = path.partition(":")
        found: Any = module(name)
        for part in names.split(".")[:-1]:
            if not hasattr(found, part):
                setattr(found, part, type(part, (), {}))
            found = getattr(found, part)
        return found

    for seam in seams:
        setattr(owner(seam.path), seam.path.rpartition(":")[2].split(".")[-1], None)
    originals = {}
    for seam in seams:
        name = seam.path.rpartition(":")[2].split(".")[-1]
        originals[seam.path] = stand_in(seam.parameters)
        setattr(owner(seam.path), name, originals[seam.path])

    def at(path: str) -> Any:
        return getattr(owner(path), path.rpartition(":")[2].split(".")[-1])

    request.param.patch(allow_untried=True)
    yield SimpleNamespace(ours=request.param, seams=seams, originals=originals, at=at)
    request.param.unpatch()
    for path, original in originals.items():
        assert at(path) is original


def test_every_function_is_replaced_by_one_of_its_parameters(patched):
    for seam in patched.seams:
        new = patched.at(seam.path)
        assert new is not patched.originals[seam.path]
        wanted = seam.parameters.replace("self", "loss_fn") if "loss" in new.__name__ else ""
        got = ", ".join(inspect.signature(new).parameters)
        assert got in (wanted, seam.parameters)


def found(of: str, name: str) -> Any:
    """The replacement of a log-prob function, its original answering 'theirs'."""
    (seam,) = [s for s in OURS[of]._PATCH.seams if s.path.endswith(f":{name}")]
    return seam.make(stand_in(seam.parameters))


@pytest.fixture
def rows():
    torch.manual_seed(0)
    logits, ids = torch.randn(N, V), torch.randint(V, (N,))
    return logits, ids, torch.distributions.Categorical(logits=logits / 0.7)


class Group:
    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


def test_log_probs_of_areal(rows, monkeypatch):
    logits, ids, want = rows
    one, both = (found("areal", n) for n in ("gather_logprobs", "gather_logprobs_entropy"))
    torch.testing.assert_close(one(logits, ids, 0.7), want.log_prob(ids))
    for got, exact in zip(
        both(logits, ids, 0.7), (want.log_prob(ids), want.entropy()), strict=True
    ):
        torch.testing.assert_close(got, exact)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group.size())
    torch.testing.assert_close(one(logits, ids, 0.7, Group(1)), want.log_prob(ids))
    assert one(logits, ids, 0.7, Group(2)) == both(logits, ids, 0.7, Group(2)) == "theirs"


def test_log_probs_of_slime(rows):
    logits, ids, want = rows
    logits = (logits / 0.7).requires_grad_()
    function = found("slime", "calculate_log_probs_and_entropy")
    log_probs, entropy = function(logits, ids, None, with_entropy=True)
    torch.testing.assert_close(log_probs, want.log_prob(ids)[:, None])
    torch.testing.assert_close(entropy, want.entropy())
    assert entropy.requires_grad
    assert not function(logits, ids, None, True, with_entropy_grad=False)[1].requires_grad
    log_probs, entropy = function(logits, ids, Group(1), chunk_size=2)
    torch.testing.assert_close(log_probs, want.log_prob(ids)[:, None])
    assert entropy is None
    assert function(logits, ids, Group(2)) == "theirs"
    assert function(logits, ids, None, log_prob_keep_mask=logits > 0) == "theirs"


def test_log_probs_of_nemo_rl(rows):
    logits, ids, want = rows
    logits, ids = logits[None] / 0.7, ids[None]
    function = found("nemo_rl", "get_next_token_logprobs_from_logits")
    exact = want.logits[:-1].gather(-1, ids[0, 1:, None])[None, :, 0]
    torch.testing.assert_close(function(ids, logits), exact)
    for top_k, top_p in ((None, 1.0), (-1, 1.0), (None, None)):
        params = SimpleNamespace(top_k=top_k, top_p=top_p)
        torch.testing.assert_close(function(ids, logits, sampling_params=params), exact)
    for top_k, top_p in ((5, 1.0), (None, 0.9)):
        params = SimpleNamespace(top_k=top_k, top_p=top_p)
        assert function(ids, logits, sampling_params=params) == "theirs"
    assert function(ids, logits, vocab_parallel_group=Group(1)) == "theirs"


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_log_probs_of_prime_rl(rows, monkeypatch, softcap):
    logits, ids, want = rows
    function = found("prime_rl", "selective_log_softmax")
    torch.testing.assert_close(function(logits[None] / 0.7, ids[None])[0], want.log_prob(ids))
    name = "prime_rl.trainer.models.layers.lm_head"
    module = ModuleType(name)
    module.PrimeLmOutput = dict
    monkeypatch.setitem(sys.modules, name, module)
    forward = found("prime_rl", "FusedOutputLinear.forward")
    hidden, weight = torch.randn(1, N, D, requires_grad=True), torch.randn(V, D)
    head = SimpleNamespace(weight=weight, **({"softcap": softcap} if softcap else {}))
    temperature = torch.rand(1, N) + 0.5
    got = forward(head, hidden, ids[None], temperature=temperature)
    z = hidden @ weight.T
    z = (z if softcap is None else softcap * (z / softcap).tanh()) / temperature[..., None]
    want = torch.distributions.Categorical(logits=z)
    torch.testing.assert_close(got["logprobs"], want.log_prob(ids))
    torch.testing.assert_close(got["entropy"], want.entropy())
    assert got["logprobs"].requires_grad
    assert not got["entropy"].requires_grad
    assert forward(head, hidden, ids[None]) == "theirs"
