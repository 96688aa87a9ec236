# SPDX-License-Identifier: Apache-2.0
"""Where the tree of sources lies, and the values of other libraries that are kept in a file."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
