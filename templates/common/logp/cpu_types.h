// SPDX-License-Identifier: Apache-2.0
// What CPU kernels that take log-probs and their host code agree on. Included by kernels, which
// have no other headers than templates.
#pragma once

#include "../type_codes.h"
#include "leaves.h"
#include "options.h"
#include "shard.h"
#include "stats.h"

namespace rlk {

using Int64 = __INT64_TYPE__;

// Columns of vocabulary that a partial covers, at every level.
constexpr Int64 kLogpCpuLeaf = 128;

}  // namespace rlk
