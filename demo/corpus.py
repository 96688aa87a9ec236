# SPDX-License-Identifier: Apache-2.0
"""Text to integers: the license texts that every Debian machine carries, or our own pages."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LICENSES = Path("/usr/share/common-licenses")
PAGES = Path(__file__).parents[1] / "docs"
TOKEN = re.compile(r"[A-Za-z']+|\d+|[^\sA-Za-z\d]")


class Corpus(NamedTuple):
    """A text as a run of word numbers.

    Attributes:
        source: Where the text is from, for people.
        words: The vocabulary, most frequent first.
        ids: The text, [T] int64 numbers into `words`.
    """

    source: str
    words: list[str]
    ids: npt.NDArray[np.int64]


def load(folder: Path = LICENSES) -> Corpus:
    """Read the license texts in `folder`, or the pages of rlk where there are none."""
    # Links are other names of files that are read anyway.
    files = sorted(p for p in folder.glob("*") if p.is_file() and not p.is_symlink())
    source = f"{len(files)} license texts in {folder}" if files else "the pages of docs/"
    files = files or sorted(PAGES.glob("*.md"))
    text = "\n".join(p.read_text(errors="replace") for p in files)
    tokens = np.array(TOKEN.findall(text))
    words, inverse, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Corpus(source, words[order].tolist(), rank[inverse].astype(np.int64))


def windows(ids: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """All runs of `length` words, [T - length + 1, length], a view."""
    return np.lib.stride_tricks.sliding_window_view(ids, length)
