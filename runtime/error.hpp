// SPDX-License-Identifier: Apache-2.0
// The five kinds of error that rlk raises, and what is wrong with an argument as data.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace rlk {

// Reads "op: argument: expected ..., got ..."; what is empty is left out. In `expected`, another
// argument of the op is named in braces, "dtype float32 (that of {hidden})", so that an op that is
// made of others can tell the error by names of its own.
struct Fault {
  std::string op;
  std::string argument;
  std::string expected;
  std::string got = {};

  std::string text() const;
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  explicit Error(Fault fault)
      : std::runtime_error(fault.text()), fault_(std::make_shared<Fault>(std::move(fault))) {}

  // Null where the error is of no argument.
  const Fault* fault() const { return fault_.get(); }

 private:
  std::shared_ptr<const Fault> fault_;  // shared: copying an exception must not throw
};

// Each kind is constructed from a Fault, or from a format string and its arguments.
#define RLK_ERROR_KIND(Name)                                          \
  class Name : public Error {                                         \
   public:                                                            \
    explicit Name(Fault fault) : Error(std::move(fault)) {}           \
    template <class... Args>                                          \
    explicit Name(fmt::format_string<Args...> format, Args&&... args) \
        : Error(fmt::format(format, std::forward<Args>(args)...)) {}  \
  }

RLK_ERROR_KIND(InvalidArgument);  // the caller's tensors or values are wrong (Python ValueError)
RLK_ERROR_KIND(Unsupported);      // nothing here can run this call (NotImplementedError)
RLK_ERROR_KIND(CompileError);     // the compiler refused the source (RuntimeError)
RLK_ERROR_KIND(DriverError);      // a driver call failed (RuntimeError)
RLK_ERROR_KIND(LoadError);        // a library or symbol is missing (ImportError)

#undef RLK_ERROR_KIND

}  // namespace rlk
