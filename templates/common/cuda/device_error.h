// SPDX-License-Identifier: Apache-2.0
// The first error that a kernel found in the values of a call. Included by templates, so this file
// includes nothing.
#pragma once

namespace rlk {

// One a device, in pinned memory, which the host reads without synchronizing.
struct DeviceError {
  enum State : unsigned {
    kNone = 0,
    kBeingWritten = 1,
    kIdOutOfRange = 2,
    kBadSequence = 3,  // boundaries of cu_seqlens
    kBadGroup = 4,     // of group_boundaries
  };
  unsigned state;
  long long row, id, num_ids;  // an active row's id outside [0, num_ids)
  const char* op;              // the host's name for it; kernels pass it on
  long long first, last;       // boundaries of sequence or group `row`
};

}  // namespace rlk
