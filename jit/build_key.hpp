// SPDX-License-Identifier: Apache-2.0
// Stages 5 and 7: what a Specialization compiles from, and the cache key over all of it.
#pragma once

#include "cache/key.hpp"
#include "jit/compiler.hpp"
#include "jit/op.hpp"
#include "jit/specialization.hpp"

namespace rlk::jit {

// The op's template. These throw Unsupported where it has none for the target.
const KernelSource& source_of(const Specialization& spec);

CompileRequest compile_request(const Specialization& spec);

// Covers every input of the output and nothing else: no path, time or log switch.
cache::Key build_key(const Specialization& spec);

}  // namespace rlk::jit
