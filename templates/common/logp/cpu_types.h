// SPDX-License-Identifier: Apache-2.0
// What CPU kernels that take log-probs and their host code agree on. Included by kernels, which
// have no headers, so this file includes nothing.
#pragma once

namespace rlk {

using Int64 = __INT64_TYPE__;

// Codes of the constant kX and of types in arguments.
enum CpuType : Int64 { kTypeNone = 0, kTypeFloat32 = 1, kTypeBfloat16 = 2, kTypeFloat16 = 3 };

// Columns of vocabulary that a partial covers, at every level.
constexpr Int64 kLogpCpuLeaf = 128;

}  // namespace rlk
