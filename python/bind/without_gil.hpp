// SPDX-License-Identifier: Apache-2.0
// Calls C++ code without the GIL, also when the interpreter ends meanwhile.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace rlk::bind {

template <class Call>
void without_gil(Call&& call) {
  PyThreadState* const thread = PyEval_SaveThread();
  std::exception_ptr failure;
  try {
    std::forward<Call>(call)();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    // Before 3.14 Python unwinds a daemon thread that comes back to an ending interpreter, through
    // destructors that need the GIL. Sleep until the process is gone instead, as 3.14 does.
    while (true) ::pause();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace rlk::bind
