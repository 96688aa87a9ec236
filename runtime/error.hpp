// SPDX-License-Identifier: Apache-2.0
// The five kinds of error that rlk raises. Message shape: "op: argument: expected ..., got ...".
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace rlk {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

 protected:
  template <class... Args>
  explicit Error(std::in_place_t, fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// Each kind is constructed from a format string and its arguments.
#define RLK_ERROR_KIND(Name)                                           \
  class Name : public Error {                                          \
   public:                                                             \
    template <class... Args>                                           \
    explicit Name(fmt::format_string<Args...> format, Args&&... args)  \
        : Error(std::in_place, format, std::forward<Args>(args)...) {} \
  }

RLK_ERROR_KIND(InvalidArgument);  // the caller's tensors or values are wrong (Python ValueError)
RLK_ERROR_KIND(Unsupported);      // nothing here can run this call (NotImplementedError)
RLK_ERROR_KIND(CompileError);     // the compiler refused the source (RuntimeError)
RLK_ERROR_KIND(DriverError);      // a driver call failed (RuntimeError)
RLK_ERROR_KIND(LoadError);        // a library or symbol is missing (ImportError)

#undef RLK_ERROR_KIND

}  // namespace rlk
