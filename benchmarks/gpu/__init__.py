# SPDX-License-Identifier: Apache-2.0
"""The run on a GPU: `linear_logp.py --device cuda`. Each part runs in a process of its own."""
