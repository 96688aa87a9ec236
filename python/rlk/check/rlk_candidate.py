# SPDX-License-Identifier: Apache-2.0
"""rlk's own ops as candidates: the one place that sets rlk's policy, target and threads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .candidates import Candidate, Misuse, make_framework
from .frameworks import Failure
from .ranks import Ranks
from .spec import OpSpec

VARIANTS = ("generic", "specialized")


def rlk_candidate(
    spec: OpSpec, device: str, framework: str | None, variant: str, target: str | None
) -> Candidate:
    """`generic` runs what rlk ships and compiles nothing; `specialized` compiles each shape.

    Its `scope` sets rlk up for that, with an empty cache folder, and puts rlk's settings back.
    Raises Misuse.
    """
    if variant not in VARIANTS:
        raise Misuse(f"variant: expected generic, specialized or both, got {variant}")
    try:
        from rlk import jit
    except ImportError as error:
        raise Misuse(f"candidate: expected rlk's compiled module, got {error}") from error
    arrays = make_framework(framework, device)
    function = getattr(jit, spec.name, None)
    if function is None:
        raise Misuse(f"op: expected one that rlk.jit has, got {spec.name}")
    # torch tensors go through autograd, as users' do.
    backward = getattr(jit, spec.name + "_backward", None) if arrays.name == "numpy" else None
    if backward is not None and len(spec.differentiable) == 1:
        backward = _as_tuple(backward)

    def describe(arguments: Mapping[str, Any]) -> Mapping[str, str]:
        explained = jit.explain(function, **arguments)
        if explained.variant != variant:
            raise Failure("other_variant", f"expected {variant}, got {explained.variant}")
        return {"name": explained.kernel, "key": explained.key, "variant": explained.variant}

    def set_threads(count: int) -> None:
        jit.configure(num_threads=count)

    def set_blocks(count: int) -> None:
        jit.configure(max_sms=count)

    made = Candidate(
        "rlk",
        function,
        arrays,
        spec.own_adapter,
        backward,
        variant=variant,
        describe=describe,
        check_errors=getattr(jit, "check_errors", None),
        # The losses from hidden states have gradients by autograd alone.
        forward_only=arrays.name == "numpy" and backward is None,
        set_threads=set_threads if device == "cpu" else None,
        set_blocks=set_blocks if device == "cuda" else None,
        # Each part of a vocabulary would be one more specialization.
        over_ranks=Ranks(spec.name) if spec.over_ranks and variant == "generic" else None,
        scope=lambda: _configured(jit, variant, target),
    )
    try:
        with made.scope():  # a target that rlk does not know is found here
            runs = _target(spec, made, jit)
    except NotImplementedError as error:
        raise Misuse(f"device: expected one that rlk runs on, got {device}: {error}") from error
    if target not in (None, runs):
        raise Misuse(f"target: expected one of the device {device}, got {target}")
    made.target = runs
    return made


def _as_tuple(backward: Callable[..., Any]) -> Callable[..., Any]:
    """An op's backward that gives its one gradient alone, in the form of the others."""

    def call(*arguments: Any, needs: tuple[str, ...], **options: Any) -> tuple[Any, ...]:
        return (backward(*arguments, **options),)

    return call


def _target(spec: OpSpec, candidate: Candidate, jit: Any) -> str:
    """What kernels are compiled for, from the name of one; nothing is compiled here."""
    inputs = spec.build(spec.suite("float32", True, 0)[0])
    given = candidate.framework.give_all(spec.arguments(inputs))
    kernel: str = jit.explain(getattr(jit, spec.name), **given).kernel
    return kernel.rpartition("@")[2]


@contextmanager
def _configured(jit: Any, variant: str, target: str | None) -> Iterator[None]:
    before = jit.settings()
    # An empty cache: no entry of an earlier run stands in for what this build makes.
    with tempfile.TemporaryDirectory(prefix="rlk-check-") as folder:
        specialize = variant == "specialized"
        policy = "sync" if specialize else "off"
        try:
            jit.configure(policy=policy, specialize=specialize, cache_dir=folder, arch=target)
        except (ValueError, NotImplementedError) as error:
            raise Misuse(f"target: expected one that runs here, got {target}: {error}") from error
        try:
            yield
        finally:
            jit.configure(**before)
