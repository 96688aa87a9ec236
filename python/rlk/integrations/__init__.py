# SPDX-License-Identifier: Apache-2.0
"""rlk inside training frameworks, one module each; none of them is imported here."""
