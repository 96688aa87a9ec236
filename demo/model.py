# SPDX-License-Identifier: Apache-2.0
"""A small next-word model in NumPy whose loss and gradients come from rlk."""

from typing import Any

import numpy as np
import numpy.typing as npt

import rlk.jit

CONTEXT = 4  # words that the model sees
EMBEDDING = 64  # numbers a word
HIDDEN = 256  # D: width of the hidden layer

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class NextWordModel:
    """embedding -> one tanh layer -> softmax over the vocabulary.

    The softmax layer is `self.weight` [V, D] and `self.bias` [V]; its logits are never formed.
    """

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def normal(*shape: int, scale: float) -> Floats:
            return (scale * rng.standard_normal(shape)).astype(np.float32)

        self.embedding = normal(vocabulary, EMBEDDING, scale=0.5)
        self.inner = normal(CONTEXT * EMBEDDING, HIDDEN, scale=(CONTEXT * EMBEDDING) ** -0.5)
        self.inner_bias = np.zeros(HIDDEN, np.float32)
        self.weight = normal(vocabulary, HIDDEN, scale=0.05)
        self.bias = np.zeros(vocabulary, np.float32)
        self._adam = Adam([self.embedding, self.inner, self.inner_bias, self.weight, self.bias])

    def hidden(self, context: Ids) -> Floats:
        """The hidden states [N, D] of `context` [N, CONTEXT]."""
        words = self.embedding[context].reshape(len(context), -1)
        hidden: Floats = np.tanh(words @ self.inner + self.inner_bias)
        return hidden

    def train_step(self, context: Ids, target: Ids, learning_rate: float) -> float:
        """One step on `context` [N, CONTEXT] and `target` [N]; returns the mean loss before it."""
        words = self.embedding[context].reshape(len(context), -1)
        hidden = np.tanh(words @ self.inner + self.inner_bias)
        logp = rlk.jit.linear_logp(hidden, self.weight, target, self.bias)
        # loss = -mean(logp), so d loss / d logp = -1/N.
        upstream = np.full(len(target), -1.0 / len(target), np.float32)
        grad = rlk.jit.linear_logp_backward(upstream, hidden, self.weight, target, self.bias)

        d_inner_sum = grad.hidden * (1.0 - hidden * hidden)
        d_words = (d_inner_sum @ self.inner.T).reshape(-1, EMBEDDING)
        d_embedding = np.zeros_like(self.embedding)
        np.add.at(d_embedding, context.reshape(-1), d_words)
        inner = [words.T @ d_inner_sum, d_inner_sum.sum(0)]
        self._adam.step([d_embedding, *inner, grad.weight, grad.bias], learning_rate)
        return float(-logp.mean())

    def continue_text(self, context: list[int], num_words: int, seed: int = 1) -> list[int]:
        """Draw `num_words` words after `context`, each among the five likeliest."""
        rng = np.random.default_rng(seed)
        ids = list(context)
        for _ in range(num_words):
            hidden = self.hidden(np.array([ids[-CONTEXT:]]))[0]
            logits = self.weight @ hidden + self.bias
            best = np.argsort(logits)[-5:]
            p = np.exp(logits[best] - logits[best].max()).astype(np.float64)
            ids.append(int(rng.choice(best, p=p / p.sum())))
        return ids


class Adam:
    """Adam over a list of arrays, updated in place."""

    def __init__(self, parameters: list[Floats], beta1: float = 0.9, beta2: float = 0.99) -> None:
        self._parameters = parameters
        self._mean = [np.zeros_like(p) for p in parameters]
        self._square = [np.zeros_like(p) for p in parameters]
        self._beta1, self._beta2, self._num_steps = beta1, beta2, 0

    def step(self, gradients: list[Any], learning_rate: float) -> None:
        """Move each parameter along its gradient."""
        self._num_steps += 1
        correction = (1 - self._beta2**self._num_steps) ** 0.5 / (1 - self._beta1**self._num_steps)
        rate = np.float32(learning_rate * correction)
        for p, g, m, v in zip(self._parameters, gradients, self._mean, self._square, strict=True):
            m += np.float32(1 - self._beta1) * (g - m)
            v += np.float32(1 - self._beta2) * (g * g - v)
            p -= rate * m / (np.sqrt(v) + np.float32(1e-8))
