// SPDX-License-Identifier: Apache-2.0
// A rank's columns of a vocabulary that several ranks have, in the arguments of every kernel of
// log-probs. A forward gives the rank's part of each row's sums; those of all ranks, one after the
// other, are joined by the step join. Included by kernels of both backends, so this file includes
// nothing.
#pragma once

namespace rlk {

// What a part is, float32 [values][rows]: the target's logit (0 where another rank has it), the
// maximum and the sum; with the entropy its moment; with statistics the sum of logits, that of
// squares, and the argmax as the bits of an int32.
constexpr int logp_part_values(bool entropy, bool stats) {
  return 3 + (entropy ? 1 : 0) + (stats ? 3 : 0);
}

struct LogpShard {
  long long begin;    // id of the first column
  long long num_ids;  // columns of all ranks
  int segment;        // columns of a segment
  // 1: the forward's results are its part: logp, row_max, row_log_sum, entropy, then stats with the
  // argmax's bits in max_logit.
  int gives_part;
  const float* parts;  // [num_parts][values][call_rows]; the step join
  int num_parts;
  long long call_rows;  // those that are not active included
};

}  // namespace rlk
