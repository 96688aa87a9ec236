# SPDX-License-Identifier: Apache-2.0
"""The flag of the long runs: RLK_CHECK_LONG=1."""

import os

LONG = os.environ.get("RLK_CHECK_LONG", "0") != "0"
