# SPDX-License-Identifier: Apache-2.0
"""The demo: a next-word language model trained with NumPy and rlk, on the CPU."""
