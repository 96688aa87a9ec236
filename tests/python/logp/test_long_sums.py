# SPDX-License-Identifier: Apache-2.0
"""Sums over the vocabulary whose terms are alike, as those of a freshly initialized head: their
rounding errors have one sign, so a sum in one chain would be wrong by more than the bound. The
sizes are those at which the vocabulary's segments are uneven, short or empty, too."""

import numpy as np
import pytest
from devices import jit

pytestmark = pytest.mark.usefixtures("device")

SIZES = [*range(1, 18), 1535, 1536, 1537, 50257, 131072, 151936, 262144, 2**20]


@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("vocab", SIZES)
def test_terms_that_are_alike(vocab, noise):
    rng = np.random.default_rng(vocab)
    hidden = np.full((3, 4), 0.5, np.float32)
    weight = (1 + noise * rng.standard_normal((vocab, 4))).astype(np.float32)
    target = rng.integers(0, vocab, 3)
    logits = hidden @ weight.T
    z = logits.astype(np.float64)
    log_sum = np.log(np.exp(z).sum(-1))
    logs = z - log_sum[:, None]
    entropy = -(np.exp(logs) * logs).sum(-1)
    bound = 1e-5 + 5e-7 * log_sum.max()
    for result in (
        jit.logp(logits, target, return_entropy=True, return_lse=True),
        jit.linear_logp(hidden, weight, target, return_entropy=True, return_lse=True),
    ):
        np.testing.assert_allclose(result.log_prob, logs[range(3), target], rtol=0, atol=bound)
        np.testing.assert_allclose(result.entropy, entropy, rtol=0, atol=bound)
        np.testing.assert_allclose(result.lse, log_sum, rtol=0, atol=bound)
