# SPDX-License-Identifier: Apache-2.0
"""The console script rlk-jit: runs the C++ program of that name that lies in the package."""

import os
import sys

from rlk._program import command


def main() -> None:
    """Become rlk-jit."""
    words = command(sys.argv[1:])
    try:
        os.execv(words[0], words)
    except OSError as error:
        sys.exit(f"rlk-jit: {words[0]}: {error.strerror}; is the package complete?")


if __name__ == "__main__":
    main()
