# SPDX-License-Identifier: Apache-2.0
"""Inputs of linear_logp, and of the ops of logits: how values are drawn for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case

KINDS = {
    "random": "normal values, logits of standard deviation 1 to 4",
    "benchmark": "the benchmarks' inputs: 0.5 N(0,1) and N(0,1)/sqrt(D); error at most 1e-4",
    "constant": "every value the same, so that log p = -log V",
    "flat": "logits of standard deviation 1e-5 around one value, as a fresh head's",
    "offset": "1e4 added to every logit",
    "negative": "every logit between -300 and -200",
    "neg_inf": "masked vocabulary: columns at -inf, whole tiles of them where V allows",
    "neg_inf_target": "as neg_inf, some targets on such a column",
    "neg_inf_row": "every logit -inf: NaN",
    "dominant": "one logit far over all others, on and off the target",
    "garbage": "NaN, infinity and out-of-range ids in the inactive rows",
    "nan_row": "a NaN in one active row, which must stay there",
    "zero_upstream": "rows whose upstream gradient is zero among others that are large",
}

# Vocabularies whose eight segments are uneven, short or empty.
UNEVEN = (*range(1, 18), 1535, 1537, 50257)
# Long ones with the value of flat logits there: rounding errors of like terms have one sign, so
# that a sum in one chain is too far off. Around a value other than 0, 16 bits hold no noise.
FLAT = ((50257, 2.0), (262144, 0.0), (2**20, 0.0))

# bias: none | same | float32; temperature: a number or "row"; mask: its dtype; target: its dtype;
# ignored: share of rows at ignore_index; softcap, logit_scale: numbers; return_*: True.
OPTION_SETS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": "none"},
    {"bias": "float32", "temperature": 0.7},
    {"temperature": 1.5, "bias": "none", "target": "int32"},
    {"temperature": "row", "mask": "bool"},
    {"mask": "int32", "target": "uint8"},
    {"mask": "float32", "ignore_index": None},
    {"ignore_index": 0, "target": "int16"},
    {"bias": "none", "ignore_index": None},
    {"softcap": 2.0, "bias": "none"},
    {"logit_scale": 0.0625, "return_lse": True},
    {"return_entropy": True, "temperature": 0.7},
    {"return_stats": True},
    {
        "softcap": 3.0,
        "logit_scale": -0.5,
        "temperature": "row",
        "mask": "bool",
        "return_entropy": True,
        "return_lse": True,
        "return_stats": True,
    },
)
# A value of each number that must show in every result.
LIVE: Mapping[str, Any] = {"temperature": 0.5, "softcap": 1.0, "logit_scale": 0.5}


def needs_bias(kind: str) -> bool:
    return kind == "offset" or kind.startswith("neg_inf")


def draw(case: Case) -> dict[str, Any]:
    """hidden [*, D], weight [V, D], bias [V] or None, target, temperature and mask."""
    values = _head(case)
    return values | _rows(case, values["weight"], values["bias"])


def draw_logits(case: Case) -> dict[str, Any]:
    """logits [*, V] of such a head, target, temperature and mask."""
    values = draw(case)
    logits = values.pop("hidden") @ values.pop("weight").T
    bias = values.pop("bias")
    if bias is not None:
        logits = logits + bias
    if case.kind == "nan_row":
        logits = np.where(np.isnan(logits) & (np.arange(logits.shape[-1]) > 0), 0.5, logits)
    return {"logits": logits, **values}


def layout(case: Case, name: str) -> str:
    """Where an input lies: expanded, where its rows may be alike."""
    if case.layout != "expanded":
        return case.layout
    if name == "bias":
        return "contiguous" if case.kind.startswith("neg_inf") else "expanded"
    if name in ("hidden", "logits") and (len(case.lead) < 2 or case.kind in ("nan_row", "garbage")):
        # Rows all alike make every rounding of dW's sum the same: the bound is for random ones.
        return "contiguous"
    return "expanded" if name in ("hidden", "logits", "temperature") else "contiguous"


def _head(case: Case) -> dict[str, Any]:
    rng = case.rng("floats")
    vocab, depth = case.sizes["vocab"], case.sizes.get("hidden", 16)
    deviation = 1.0 + case.seed % 4
    hidden = rng.normal(size=(*case.lead, depth))
    weight = rng.normal(size=(vocab, depth)) * deviation / np.sqrt(depth)
    bias: np.ndarray | None = rng.normal(size=vocab) * 0.5
    if case.options.get("bias", "same") == "none" and not needs_bias(case.kind):
        bias = None
    if case.kind == "benchmark":
        hidden, weight = 0.5 * hidden, weight / deviation
    elif case.kind == "constant":
        value = case.options.get("constant_value", 0.5)
        hidden, weight = np.full_like(hidden, value), np.full_like(weight, value)
        bias = None if bias is None else np.full_like(bias, value)
    elif case.kind == "flat":
        hidden, weight = np.sign(hidden), 1e-5 / deviation * weight
        bias = None if bias is None else np.full_like(bias, case.options.get("constant_value", 0.0))
    elif case.kind == "negative":
        hidden[..., 0], weight[:, 0] = 16.0, -250.0 / 16.0
    elif case.kind == "dominant":
        hidden[..., 0] = 8.0
        weight[rng.integers(vocab), 0] = 200.0 / 8.0
    elif case.kind == "nan_row" and hidden.size:
        hidden.reshape(-1, depth)[0, depth // 2] = np.nan
    if bias is not None and case.kind == "offset":
        bias = 1e4 + 8.0 * bias
    elif bias is not None and case.kind == "neg_inf_row":
        bias = np.full_like(bias, -np.inf)
    elif bias is not None and case.kind.startswith("neg_inf"):
        bias[rng.random(vocab) < 0.3] = -np.inf
        # Whole tiles, the first one too, unless ids are too narrow to reach beyond them.
        start = 1 if np.iinfo(case.options.get("target", "int64")).max < vocab else 0
        bias[start : start + min(400, vocab // 2)] = -np.inf
        bias[[start - 1, -1]] = 0.0
    if layout(case, "hidden") == "expanded":
        hidden[:] = hidden[:1]
    return {"hidden": hidden, "weight": weight, "bias": bias}


def _rows(case: Case, weight: np.ndarray, bias: np.ndarray | None) -> dict[str, Any]:
    """target, temperature and mask."""
    rng = case.rng("rows")
    lead, vocab = case.lead, case.sizes["vocab"]
    limits = np.iinfo(case.options.get("target", "int64"))
    finite = np.arange(vocab)
    if bias is not None and case.kind == "neg_inf":
        finite = np.flatnonzero(np.isfinite(bias))
    finite = finite[finite <= limits.max]
    target = rng.choice(finite, size=lead)
    if case.kind == "dominant" and (top := int(weight[:, 0].argmax())) <= limits.max:
        target = np.where(np.arange(target.size).reshape(lead) % 2 == 0, top, target)
    if "token_value" in case.options:
        target = np.full(lead, case.options["token_value"])
    target = np.asarray(target, np.int64)
    ignore_index = case.options.get("ignore_index", -100)
    if ignore_index is not None and ignore_index >= limits.min:
        ignored = rng.random(lead) < case.options.get("ignored", 0.15 if target.size > 3 else 0)
        target = np.where(ignored, ignore_index, target)
    temperature: Any = case.options.get("temperature", 1.0)
    if temperature == "row":
        temperature = rng.uniform(0.3, 1.6, size=lead)
    mask = None
    if case.options.get("mask", "none") != "none" or case.kind == "garbage":
        mask = np.asarray(rng.random(lead) < 0.7)
        if mask.size > 1:
            mask.reshape(-1)[:2] = (True, False)
    return {"target": target, "temperature": temperature, "mask": mask}
