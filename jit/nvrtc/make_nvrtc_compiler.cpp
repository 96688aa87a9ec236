// SPDX-License-Identifier: Apache-2.0
// Where the process's NVRTC compiler looks, and the driver that bounds its version.
#include "jit/nvrtc/make_nvrtc_compiler.hpp"

#include "runtime/cuda/driver.hpp"

#include <mutex>

namespace rlk::jit {
namespace {

std::mutex folders_mutex;
std::vector<std::filesystem::path> python_folders;

std::vector<std::filesystem::path> package_folders(const std::filesystem::path& package) {
  const std::lock_guard lock(folders_mutex);
  auto folders = python_folders;
  folders.push_back(package.parent_path());
  return folders;
}

std::optional<int> driver_version() {
  const auto* driver = runtime::cuda::Driver::find();
  if (driver == nullptr) return std::nullopt;
  return driver->version();
}

}  // namespace

void set_python_folders(std::vector<std::filesystem::path> folders) {
  const std::lock_guard lock(folders_mutex);
  python_folders = std::move(folders);
}

std::shared_ptr<NvrtcCompiler> make_nvrtc_compiler(const Settings& settings,
                                                   std::optional<int> major,
                                                   std::function<bool()> is_cancelled) {
  return std::make_shared<NvrtcCompiler>(NvrtcCompiler::Options{
      .search =
          [package = settings.package_folder, named = settings.nvrtc] {
            auto search = nvrtc_search(process_environment, package_folders(package));
            search.named = named;
            return search;
          },
      // What is made for other machines is not bound by this one's driver.
      .driver_version = major ? [] { return std::optional<int>(); } : driver_version,
      .major = major,
      .dump_dir = settings.dump_dir,
      .is_cancelled = std::move(is_cancelled),
  });
}

}  // namespace rlk::jit
