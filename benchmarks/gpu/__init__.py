# SPDX-License-Identifier: Apache-2.0
"""What benchmarks on a GPU share, and the parts of `linear_logp.py --device cuda`, each of which
runs in a process of its own."""
