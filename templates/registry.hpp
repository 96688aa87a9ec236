// SPDX-License-Identifier: Apache-2.0
// The ops of this build and the kernel sources embedded in it. Filled in by the build: each folder
// under templates/ with an op.cpp is an op and defines `const jit::Op <folder>_op`.
#pragma once

#include "jit/op.hpp"

#include <span>
#include <string_view>

namespace rlk::templates {

using jit::KernelSource;

std::span<const KernelSource> kernel_sources();
const KernelSource* find_source(std::string_view op, Target target);

jit::Ops ops();
const jit::Op* find_op(std::string_view name);

}  // namespace rlk::templates
