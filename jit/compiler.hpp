// SPDX-License-Identifier: Apache-2.0
// What the dispatcher needs of a compiler: LLVM for the CPU, NVRTC for CUDA, a fake in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rlk::jit {

// A value for a template's constant, by the name of its global variable: {"kV", 128256}.
struct NamedConstant {
  std::string name;
  int64_t value = 0;

  bool operator==(const NamedConstant&) const = default;
};

// Everything that decides the output of a compile, and where a refused one ends up. What points
// elsewhere must outlive the call.
struct CompileRequest {
  std::string name;                      // Specialization text, for messages only
  std::string target;                    // "x86-64-v4"
  std::span<const std::byte> source;     // LLVM: bitcode of the target's level; NVRTC: source text
  std::vector<NamedConstant> constants;  // each must be a constant that the source has
  std::vector<std::string> entries;      // entry point names; all else is dropped if unused
  std::vector<std::string> options;      // in order
  // NVRTC: a source that is refused is written to a file, which the error names. Not for a probe.
  bool keep_refused = true;
};

// What the compiler knows about its output; a number that it does not know stays -1. Where there
// are several entry points, the largest number over them.
struct CompileStats {
  double compile_ms = 0.0;
  int64_t code_bytes = -1;  // machine code alone
  int registers = -1;
  int64_t shared_bytes = -1;      // static shared memory of a block
  int64_t local_bytes = -1;       // stack frame
  int64_t spilled_bytes = -1;     // NVRTC alone
  bool serializes_wgmma = false;  // NVRTC alone: each matrix product waits for the one before
  int num_spills = -1;            // LLVM alone: registers written to the stack, by instruction
};

struct CompiledCode {
  std::vector<std::byte> code;  // LLVM: one relocatable ELF object; NVRTC: cubin or PTX
  CompileStats stats;
};

// Safe to call from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Second half of an entry's file name, so of [A-Za-z0-9._-] only: "llvm-19.1.7-5c1f09ab". Known
  // without opening the compiler's library.
  virtual std::string identity() const = 0;

  // Whether compile() can be expected to work. Looks for the library but does not open it.
  virtual bool available() const noexcept = 0;

  // One line on what is missing, empty while available().
  virtual std::string why_not() const = 0;

  // Throws CompileError with the request's name and the compiler's log, LoadError where the
  // library cannot be opened.
  virtual CompiledCode compile(const CompileRequest& request) = 0;
};

}  // namespace rlk::jit
