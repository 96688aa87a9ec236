// SPDX-License-Identifier: Apache-2.0
// The one file of this library that is built with exceptions: operator new throws one where memory
// runs out.
#include "jit/llvm/compile.hpp"

#include <execinfo.h>

namespace rlk::llvm_seam {
namespace {

// The C library opens libgcc when it first unwinds a frame of its own, and ends the process where
// there is no memory for that: so it does so now, when this library is opened.
void* frame = nullptr;
[[maybe_unused]] const int num_frames = ::backtrace(&frame, 1);

}  // namespace

void catch_all(void (*compile)(const rlk_llvm_request&, rlk_llvm_result&),
               const rlk_llvm_request& request, rlk_llvm_result& result) {
  try {
    compile(request, result);
  } catch (...) {  // result has no code yet, or not all of it
    std::free(result.code);
    result.code = nullptr;
  }
}

}  // namespace rlk::llvm_seam
