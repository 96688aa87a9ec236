// SPDX-License-Identifier: Apache-2.0
// How a kernel tells the host what it found wrong in the values of a call.
#pragma once

#include "common/cuda/device_error.h"
#include "common/cuda/math.cuh"

namespace rlk {

// Whether this thread may write: the first error of the device is kept.
RLK_DEVICE bool begin_report(DeviceError& error) {
  return atomicCAS(&error.state, DeviceError::kNone, DeviceError::kBeingWritten) == 0;
}

RLK_DEVICE void end_report(DeviceError& error, DeviceError::State state) {
  __threadfence_system();
  *const_cast<volatile unsigned*>(&error.state) = state;
}

// Tells of part i of `count` if its boundaries are out of order: those of all go from 0 to `end`.
RLK_DEVICE void expect_part(DeviceError& error, const char* op, DeviceError::State state,
                            const long long* starts, Int64 i, Int64 count, Int64 end) {
  const Int64 first = starts[i], last = starts[i + 1];
  const bool has_ends = (i > 0 || first == 0) && (i + 1 < count || last == end);
  const bool is_ordered = state == DeviceError::kBadGroup ? first < last : first <= last;
  if ((has_ends && is_ordered) || !begin_report(error)) return;
  error.row = i;
  error.first = first;
  error.last = last;
  error.op = op;
  end_report(error, state);
}

}  // namespace rlk
