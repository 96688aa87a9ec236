// SPDX-License-Identifier: Apache-2.0
// A kernel as rlk ships it: compiled once for a folder, and refused where its code is slow unseen.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/compiler.hpp"
#include "jit/specialization.hpp"

namespace rlk::jit {

struct ShippedKernel {
  cache::Entry entry;
  bool is_new = false;  // it was compiled now
};

// The store's entry of the kernel by this compiler, else a new one, which is stored, without times.
// Throws CompileError where a GPU kernel spills, has a stack frame or serializes its wgmma
// instructions: such code is never stored, so what the store has was found good when it was
// compiled.
ShippedKernel ship_kernel(const Specialization& spec, Compiler& compiler, cache::DiskStore& store);

}  // namespace rlk::jit
