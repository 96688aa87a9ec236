# SPDX-License-Identifier: Apache-2.0
"""torch's matrix products with bits that do not depend on the batch.

``torch.mm``, ``torch.addmm`` and all that torch makes of them, such as ``F.linear`` and the product
of ``[..., K]`` with a matrix, become `rlk.jit.det_gemm`, for float32, bfloat16 and float16 tensors
of the CPU and of CUDA devices. Gradients are such products too, since torch's autograd makes them
of ``mm``. Everything else is as it was: ``torch.bmm``, attention, convolutions, softmax, norms and
means, products of other dtypes. A kernel of torch's own that depends on the batch still does.

Example:
    >>> from rlk.integrations import batch_invariant
    >>> with batch_invariant.mode():
    ...     logits = model(tokens).logits
    >>> batch_invariant.patch()  # from here on, in all threads
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlk import _core
from rlk.errors import Fault, Unsupported, check_flag, fail

__all__ = ["is_patched", "mode", "patch", "unpatch"]

_lock = threading.RLock()
_library: Any = None  # of the replaced kernels, while they are in force
_is_asked = False  # by patch()
_num_open = 0  # blocks of mode(), of all threads


def is_patched() -> bool:
    """Whether torch's products are rlk's now."""
    return _library is not None


def patch() -> None:
    """Puts rlk's products in torch's place, for all threads of the process.

    Raises:
        rlk.Unsupported: torch is not imported.
    """
    global _library, _is_asked
    torch = _core.ready_torch()
    if torch is None:
        expected = "torch to be imported"
        raise Unsupported(Fault("batch_invariant", "torch", expected, "a process without it"))
    with _lock:
        _is_asked = True
        if _library is not None:
            return
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            for key in ("CPU", "CUDA"):
                for name, function in _functions(torch).items():
                    library.impl(name, function, key)
        _library = library


def unpatch() -> None:
    """Puts torch's own products back."""
    global _library, _is_asked
    with _lock:
        _is_asked = False
        if _library is not None:
            _library._destroy()
            _library = None


@contextmanager
def mode(enabled: bool = True) -> Iterator[None]:
    """Within it products are rlk's, or with enabled=False torch's own; then as before.

    It holds for all threads of the process, as `patch` does: blocks of several threads may overlap,
    and the last that ends puts torch's own back. Products that run while the first begins or the
    last ends may fail.

    Raises:
        rlk.InvalidArgument: enabled is no bool.
        rlk.Unsupported: as `patch`.
    """
    asked, opened = _enter(check_flag("batch_invariant", "enabled", enabled))
    try:
        yield
    finally:
        _leave(asked, opened)


def _enter(enabled: bool) -> tuple[bool, int]:
    """What `_leave` is to put back: whether patch() asked, and by how much the blocks change."""
    global _is_asked, _num_open
    with _lock:
        asked, opened = _is_asked, -1 if enabled else _num_open
        (patch if enabled else unpatch)()
        _is_asked = asked and enabled
        _num_open += -opened
        return asked, opened


def _leave(asked: bool, opened: int) -> None:
    global _is_asked, _num_open
    with _lock:
        _num_open += opened
        is_wanted = asked or _num_open > 0
        (patch if is_wanted else unpatch)()
        _is_asked = asked


def _functions(torch: Any) -> dict[str, Any]:
    """Kernels by the names of the ops that they are of."""
    storage = (torch.float32, torch.bfloat16, torch.float16)

    def product(a: Any, b: Any, bias: Any = None, out_dtype: Any = None) -> Any:
        arguments = {"a": a, "b": b, "bias": bias, "out_dtype": out_dtype}
        return _core.det_gemm_forward(arguments, sizes_vary=True)

    def is_ours(a: Any, b: Any) -> bool:
        same = a.dtype == b.dtype and a.dtype in storage and a.dim() == b.dim() == 2
        return same and 0 not in (*a.shape[1:], *b.shape)

    def mm(a: Any, b: Any) -> Any:
        # One product of a batch is torch's own, and has no kernel here.
        return product(a, b) if is_ours(a, b) else torch.bmm(a[None], b[None])[0]

    def addmm(added: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not is_ours(a, b):
            return torch.baddbmm(
                added[None] if added.dim() == 2 else added, a[None], b[None], beta=beta, alpha=alpha
            )[0]
        plain = beta == 1 and alpha == 1 and added.dtype in (a.dtype, torch.float32)
        if plain and added.shape == (b.shape[1],):
            return product(a, b, added)
        found = product(a, b, None, None if a.dtype == torch.float32 else "float32")
        found = found if alpha == 1 else found * alpha
        # With a beta of 0 what is in `added` counts as nothing, not even a NaN.
        found = found if beta == 0 else found + added.float() * beta
        return found.to(a.dtype)

    def into(function: Any) -> Any:
        def run(*arguments: Any, out: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            if out.dtype != found.dtype:
                names = (str(x.dtype).removeprefix("torch.") for x in (found, out))
                fail("batch_invariant", "out", f"dtype {next(names)}", next(names))
            out.resize_(found.shape)
            return out.copy_(found)

        return run

    def addmm_(added: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return added.copy_(addmm(added, a, b, beta=beta, alpha=alpha))

    return {
        "mm": mm,
        "mm.out": into(mm),
        "addmm": addmm,
        "addmm.out": into(addmm),
        "addmm_": addmm_,
    }
