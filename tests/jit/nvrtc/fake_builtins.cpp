// SPDX-License-Identifier: Apache-2.0
// Stands beside the fake NVRTC as its builtins.
extern "C" __attribute__((visibility("default"))) int rlk_fake_builtins() { return 0; }
