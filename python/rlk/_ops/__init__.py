# SPDX-License-Identifier: Apache-2.0
"""The ops, a file each: the public functions of `rlk.jit`, then what they are made of."""
