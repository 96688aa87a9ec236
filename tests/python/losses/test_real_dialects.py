# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients that the sources of ten systems gave, from support/real_dialects.json."""

import numpy as np
import pytest
from dialects import SETS, Set
from losses import Batch

pytestmark = pytest.mark.usefixtures("device", "generic")


@pytest.mark.parametrize("one", [s for s in SETS if s.rlk_options is not None], ids=lambda s: s.id)
def test_the_loss_and_gradient_of_the_source(one: Set):
    call = one.rlk_call
    advantages = one.inputs["advantages"]
    if call["advantages"] == "advantages*weights":
        advantages = advantages.reshape(len(advantages), -1) * one.inputs["weights"]
    log_probs = one.inputs[call.get("log_probs", "log_probs")]
    old = one.inputs[call.get("old_log_probs", "old_log_probs")]
    b = Batch(log_probs, old, advantages, one.inputs["mask"])
    scale, want = call.get("scale", 1.0), one.result
    loss = scale * float(b.loss(**one.rlk_options).loss)
    assert loss == pytest.approx(want["loss"], rel=1e-5, abs=2e-6)
    grads = b.grads(**one.rlk_options)
    for name, grad in zip(("grad", "grad_entropy"), grads, strict=True):
        if want.get(name) is not None:
            exact = np.array(want[name])
            error = np.abs(scale * grad - exact).max()
            assert error <= 1e-5 * np.abs(exact).max() + 1e-30, name


def test_every_system_is_there():
    frameworks = {s.framework for s in SETS}
    assert (len(SETS), len(frameworks)) == (300, 10)
    assert sum(s.rlk_options is None for s in SETS) == 20
