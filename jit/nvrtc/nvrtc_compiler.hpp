// SPDX-License-Identifier: Apache-2.0
// The CUDA compiler: the best NVRTC of this machine, found at first need, opened at the first
// compile and kept.
#pragma once

#include "jit/compiler.hpp"
#include "jit/nvrtc/nvrtc_library.hpp"
#include "runtime/target.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::jit {

// The options of a target that decide the code, in order: CompileRequest::options and the key.
// Paths, and switches that leave the code as it is, are compile()'s own.
std::vector<std::string> nvrtc_options(Target target);

// The constants as lines of C++ and then the template: what NVRTC is given.
std::string nvrtc_source(const CompileRequest& request);

class NvrtcCompiler final : public Compiler {
 public:
  struct Options {
    std::function<NvrtcSearch()> search;
    // CUDA's version as the driver counts it (12080), nothing without a driver. Asked once.
    std::function<std::optional<int>()> driver_version = [] { return std::nullopt; };
    std::optional<int> major;  // a CUDA major asked for: `warm` for other machines
    // RLK_DUMP_DIR, for refused sources; else the temp folder, which takes the first few alone.
    std::optional<std::string> dump_dir;
    std::function<bool()> is_cancelled = {};  // asked during a compile, which then fails
  };

  // Looks for nothing yet.
  explicit NvrtcCompiler(Options options);
  ~NvrtcCompiler() override;

  std::string identity() const override;
  bool available() const noexcept override;
  std::string why_not() const override;
  CompiledCode compile(const CompileRequest& request) override;

  // For doctor: all that were found, and the one chosen (nullptr if none).
  const std::vector<NvrtcLibrary>& found() const;
  const NvrtcLibrary* chosen() const;

 private:
  struct Choice;

  const Choice& choice() const;
  const NvrtcTable& open();
  CompiledCode compile_here(const CompileRequest& request);
  std::string keep_refused(const CompileRequest& request, const std::string& source);

  Options options_;
  mutable std::mutex mutex_;  // guards the making of what follows
  mutable std::unique_ptr<const Choice> choice_;
  std::unique_ptr<const NvrtcTable> table_;
  std::atomic<int> num_kept_{0};  // refused sources, in the temp folder
  std::string open_error_;        // once opening failed it is not tried again
};

}  // namespace rlk::jit
