// SPDX-License-Identifier: Apache-2.0
// The NVRTC compiler of this process, from its settings and environment.
#pragma once

#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "runtime/settings.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace rlk::jit {

// Where Python looks for packages, so for NVRTC's wheels; set at the import of rlk, before the
// first compile. The package's own parent folder is searched in any case.
void set_python_folders(std::vector<std::filesystem::path> folders);

// Looks for nothing until it is asked. `major`: a CUDA major to compile with, for machines other
// than this one; `is_cancelled`: see NvrtcCompiler::Options.
std::shared_ptr<NvrtcCompiler> make_nvrtc_compiler(const Settings& settings,
                                                   std::optional<int> major = std::nullopt,
                                                   std::function<bool()> is_cancelled = {});

}  // namespace rlk::jit
