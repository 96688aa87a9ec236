# SPDX-License-Identifier: Apache-2.0
"""Switches rlk on where verl imports this: ``model.external_lib=rlk.integrations.verl.auto``, or
``VERL_USE_EXTERNAL_MODULES=rlk.integrations.verl.auto`` in the environment of every process."""

from rlk.integrations.verl import patch

patch()
