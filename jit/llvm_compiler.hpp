// SPDX-License-Identifier: Apache-2.0
// The CPU compiler: librlk_llvm.so, opened at the first compile and kept.
#pragma once

#include "jit/compiler.hpp"

#include <filesystem>
#include <mutex>

namespace rlk::jit {

class LlvmCompiler final : public Compiler {
 public:
  // The folder that holds librlk_llvm.so. Touches nothing yet.
  explicit LlvmCompiler(const std::filesystem::path& folder);
  ~LlvmCompiler() override;

  std::string identity() const override;
  bool available() const noexcept override;
  std::string why_not() const override;
  CompiledCode compile(const CompileRequest& request) override;

  // The code as assembly text. Throws as compile() does.
  std::string assembly(const CompileRequest& request);

  const std::filesystem::path& library() const { return library_; }

 private:
  struct Functions;

  const Functions& open();
  template <class Use>
  void compile_to(int output, const CompileRequest& request, const Use& use);

  std::filesystem::path library_;
  mutable std::mutex mutex_;  // guards the two below
  // Never freed and its library never closed: LLVM's statics do not survive a second opening.
  const Functions* functions_ = nullptr;
  std::string open_error_;  // once opening failed, unless it was refused, it is not tried again
};

}  // namespace rlk::jit
