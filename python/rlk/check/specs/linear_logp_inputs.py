# SPDX-License-Identifier: Apache-2.0
"""Inputs of linear_logp: how values are drawn for each kind, and what garbage looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..case import Case, Inputs
from ..spec import one_of, yes_or_no
from ..stored import Stored, encode, of

KINDS = {
    "random": "normal values, logits of standard deviation 1 to 4",
    "benchmark": "the benchmarks' inputs: 0.5 N(0,1) and N(0,1)/sqrt(D); error at most 1e-4",
    "constant": "every value the same, so that log p = -log V",
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
ADVERSARIAL = tuple(kind for kind in KINDS if kind not in ("random", "benchmark", "constant"))
FORWARD_ONLY = ("neg_inf_row",)  # no gradient is defined there

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
    {
        "softcap": 3.0,
        "logit_scale": -0.5,
        "temperature": "row",
        "mask": "bool",
        "return_entropy": True,
        "return_lse": True,
    },
)


# A value of each number that must show in every result.
LIVE: Mapping[str, Any] = {"temperature": 0.5, "softcap": 1.0, "logit_scale": 0.5}


def _temperature(text: str) -> float | str:
    try:
        value = text if text == "row" else float(text)
    except ValueError:
        value = 0.0
    if isinstance(value, float) and not 0 < value < np.inf:
        raise ValueError(f"expected a number above 0 or row, got {text}")
    return value


def _number(text: str, least: float, expected: str) -> float:
    try:
        value = float(np.float32(text))
    except ValueError:
        value = np.nan
    if not least < value < np.inf:
        raise ValueError(f"expected {expected}, got {text}")
    return value


def _ignore_index(text: str) -> int | None:
    try:
        return None if text in ("none", "None") else int(text)
    except ValueError:
        raise ValueError(f"expected a whole number or none, got {text}") from None


INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
# A value of an option from its text, as a case prints it.
OPTION_VALUES: Mapping[str, Callable[[str], Any]] = {
    "bias": one_of("none", "same", "float32"),
    "temperature": _temperature,
    "softcap": lambda text: _number(text, 0.0, "a number above 0"),
    "logit_scale": lambda text: _number(text, -np.inf, "a number"),
    "return_entropy": yes_or_no,
    "return_lse": yes_or_no,
    "mask": one_of("bool", *INTEGERS, "float32", "float16"),
    "target": one_of(*INTEGERS),
    "ignore_index": _ignore_index,
}


def build(case: Case, row_inputs: tuple[str, ...]) -> Inputs:
    """Draws the inputs of a case."""
    values = _floats(case)
    bias = values["bias"]
    if "logits" in row_inputs:
        values = {"logits": _logits(case, values)}
    values |= _rows(case, bias)
    garbage = case.kind == "garbage" and case.lead != ()
    stored: dict[str, Any] = {
        "softcap": case.options.get("softcap"),
        "logit_scale": case.options.get("logit_scale", 1.0),
        "ignore_index": case.options.get("ignore_index", -100),
        "return_entropy": case.options.get("return_entropy", False),
        "return_lse": case.options.get("return_lse", False),
    }
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value = of(value, _dtype(case, name), _layout(case, name))
        stored[name] = value
    names = tuple(n for n in row_inputs if isinstance(stored[n], Stored))
    inputs = Inputs(stored, case.lead, names)
    if garbage:
        inactive = ~_active(inputs)
        inputs = with_garbage(inputs, inactive, row_inputs, case.rng("garbage"))
    return inputs


def upstream(case: Case, output: str, active: np.ndarray, lead: tuple[int, ...]) -> Stored:
    """Normal values, one per row; one value for all in the layout `expanded`."""
    rng = case.rng(f"upstream of {output}")
    g = rng.normal(size=lead)
    if case.kind == "zero_upstream":
        g = np.where(rng.random(lead) < 0.5, 0.0, 100.0 * g)
    if case.layout == "expanded" and lead:
        return of(np.full(lead, rng.normal()), "float32", "expanded")
    if case.kind == "garbage":
        g = np.where(active.reshape(lead), g, np.nan)
    return of(g, "float32", "strided" if case.layout == "transposed" else case.layout)


def with_garbage(
    inputs: Inputs,
    where: np.ndarray,
    row_inputs: tuple[str, ...],
    rng: np.random.Generator | None = None,
) -> Inputs:
    """Fills the rows `where` (flat, bool; inactive by the mask) with what must not be looked at."""
    rng = rng or np.random.default_rng(0)
    changed = {}
    for name in row_inputs:
        old = inputs[name]
        if name == "mask" or not isinstance(old, Stored):
            continue
        width = old.shape[len(inputs.lead) :]
        fresh = old.clone()
        if 0 in fresh.shape or 0 in fresh.strides:
            continue
        view = fresh.raw()
        for row in np.flatnonzero(where):
            place = np.unravel_index(row, inputs.lead)
            view[place] = _junk(old.dtype, width, inputs, place, rng)
        changed[name] = fresh
    return inputs.but(**changed)


def _junk(
    dtype: str, width: tuple[int, ...], inputs: Inputs, place: Any, rng: np.random.Generator
) -> np.ndarray:
    if dtype in ("float32", "float16", "bfloat16"):
        return encode(rng.choice([np.nan, np.inf, -np.inf, 0.0, -1.0], size=width), dtype)
    if inputs["mask"] is None or inputs["mask"].raw()[place] != 0:
        return np.asarray(inputs["target"].raw()[place])  # inactive by its id alone: keep it
    limits = np.iinfo(dtype)
    vocab = inputs["logits"].shape[-1] if "logits" in inputs.values else inputs["weight"].shape[0]
    ids = [limits.max, limits.min, min(vocab, limits.max), limits.max // 2]
    return np.asarray(rng.choice(np.array(ids, dtype)))


def _active(inputs: Inputs) -> np.ndarray:
    active = np.ones(inputs.num_rows, bool)
    if inputs["mask"] is not None:
        active &= np.ascontiguousarray(inputs["mask"].raw()).reshape(-1) != 0
    if inputs["ignore_index"] is not None:
        ids = np.ascontiguousarray(inputs["target"].raw()).reshape(-1)
        active &= ids != inputs["ignore_index"]
    return active


def _floats(case: Case) -> dict[str, Any]:
    """hidden [*, D], weight [V, D], bias [V] or None, before rounding."""
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
    if case.layout == "expanded" and bias is not None and _layout(case, "bias") == "expanded":
        bias[:] = bias[0]
    if case.layout == "expanded" and _layout(case, "hidden") == "expanded":
        hidden[:] = hidden[:1]
    return {"hidden": hidden, "weight": weight, "bias": bias}


def _logits(case: Case, values: Mapping[str, Any]) -> np.ndarray:
    """[*, V], of a head's values."""
    logits: np.ndarray = values["hidden"] @ values["weight"].T
    if values["bias"] is not None:
        logits = logits + values["bias"]
    if case.kind == "nan_row":
        logits = np.where(np.isnan(logits) & (np.arange(logits.shape[-1]) > 0), 0.5, logits)
    return logits


def needs_bias(kind: str) -> bool:
    return kind == "offset" or kind.startswith("neg_inf")


def _rows(case: Case, bias: np.ndarray | None) -> dict[str, Any]:
    """target, temperature and mask."""
    rng = case.rng("rows")
    lead, vocab = case.lead, case.sizes["vocab"]
    limits = np.iinfo(case.options.get("target", "int64"))
    finite = np.arange(vocab)
    if bias is not None and case.kind == "neg_inf":
        finite = np.flatnonzero(np.isfinite(bias))
    finite = finite[finite <= limits.max]
    target = rng.choice(finite, size=lead)
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
        if case.layout == "expanded" and lead:
            temperature[:] = temperature[:1]
    mask = None
    if "mask" in case.options or case.kind == "garbage":
        mask = np.asarray(rng.random(lead) < 0.7)
        if mask.size > 1:
            mask.reshape(-1)[:2] = (True, False)
    return {"target": target, "temperature": temperature, "mask": mask}


def _dtype(case: Case, name: str) -> str:
    if name == "bias" and case.options.get("bias") == "float32":
        return "float32"
    others = {"target": "int64", "mask": "bool"}
    if name in others:
        return str(case.options.get(name, others[name]))
    return "float32" if name == "temperature" else case.dtype


def _layout(case: Case, name: str) -> str:
    if case.layout != "expanded":
        return case.layout
    if name == "bias":
        return "contiguous" if case.kind.startswith("neg_inf") else "expanded"
    if name in ("hidden", "logits") and (len(case.lead) < 2 or case.kind in ("nan_row", "garbage")):
        # Rows all alike make every rounding of dW's sum the same: the bound is for random ones.
        return "contiguous"
    return "expanded" if name in ("hidden", "logits", "temperature") else "contiguous"
