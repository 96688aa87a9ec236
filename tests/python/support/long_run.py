# SPDX-License-Identifier: Apache-2.0
"""The flag of `./dev test --long`."""

import os

LONG = "RLK_LONG_TESTS" in os.environ
