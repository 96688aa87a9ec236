// SPDX-License-Identifier: Apache-2.0
// The steps of one compile inside librlk_llvm.so; seam.cpp runs them in order. Built without
// exceptions, as LLVM is: each step returns llvm::Error.
#pragma once

#include "jit/llvm/rlk_llvm.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/Error.h>
#include <llvm/Target/TargetMachine.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace rlk::llvm_seam {

// Takes every diagnostic: nothing reaches stderr. A transformation that the template asks for and
// does not get (a loop "not unrolled" keeps a register tile in memory: a hundred times slower) is
// an error, unless option allow-missed-transforms is given.
class Diagnostics final : public llvm::DiagnosticHandler {
 public:
  explicit Diagnostics(bool allow_missed_transforms) : allow_missed_(allow_missed_transforms) {}

  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override;
  // Two remarks carry the figures below.
  bool isAnalysisRemarkEnabled(llvm::StringRef pass) const override {
    return pass == "prologepilog";
  }
  bool isMissedOptRemarkEnabled(llvm::StringRef pass) const override { return pass == "regalloc"; }
  bool isPassedOptRemarkEnabled(llvm::StringRef) const override { return false; }
  bool isAnyRemarkEnabled() const override { return true; }

  bool failed() const { return failed_; }
  const std::string& log() const { return log_; }
  int64_t stack_bytes() const { return stack_bytes_; }
  int32_t num_spills() const { return num_spills_; }

 private:
  bool allow_missed_;
  bool failed_ = false;
  std::string log_;
  int64_t stack_bytes_ = 0;
  int32_t num_spills_ = 0;
};

llvm::Error failure(const llvm::Twine& reason);

// Calls it and drops what it throws, std::bad_alloc (catch_all.cpp).
void catch_all(void (*compile)(const rlk_llvm_request&, rlk_llvm_result&),
               const rlk_llvm_request& request, rlk_llvm_result& result);

// Specialize (specialize.cpp). Reads only the functions that the entries reach.
llvm::Expected<std::unique_ptr<llvm::Module>> read_reachable(llvm::LLVMContext& context,
                                                             const rlk_llvm_request& request);
// Gives each constant its value and drops all that the entries do not need.
llvm::Error bind_constants(llvm::Module& module, const rlk_llvm_request& request);

// Optimize (optimize.cpp).
llvm::Expected<std::unique_ptr<llvm::TargetMachine>> machine_for(llvm::StringRef level);
// Replaces the build's choice of processor by the machine's.
void retarget(llvm::Module& module, const llvm::TargetMachine& machine);
void optimize(llvm::Module& module, llvm::TargetMachine& machine);

// Emit (emit.cpp).
llvm::Error emit(llvm::Module& module, llvm::TargetMachine& machine, rlk_llvm_output output,
                 llvm::SmallVectorImpl<char>& code);
// Refuses what the loader would refuse: undefined symbols, writable data. Returns code bytes.
llvm::Expected<int64_t> check_object(llvm::StringRef object);

}  // namespace rlk::llvm_seam
