# SPDX-License-Identifier: Apache-2.0
"""A progress bar with the loss, by rich where it is installed; else, and in a pipe, plain lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Advance = Callable[[int, float], None]


@contextmanager
def bar(num_steps: int) -> Iterator[Advance]:
    """Yield `advance(step, loss)`."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        yield lambda step, loss: _plain(num_steps, step, loss)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("  step {task.completed:>4}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=num_steps, loss=0.0)
        yield lambda step, loss: progress.update(task, completed=step, loss=loss)


def _plain(num_steps: int, step: int, loss: float) -> None:
    if step == 1 or step * 10 // num_steps > (step - 1) * 10 // num_steps:
        print(f"  step {step:>4}/{num_steps}  loss {loss:.3f}", flush=True)
