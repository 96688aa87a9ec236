// SPDX-License-Identifier: Apache-2.0
// Every NVRTC on this machine and the one to use, found without opening any as a library.
#pragma once

#include "runtime/settings.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rlk::jit {

// Where a library was found; among equal versions the earlier kind is used.
enum class NvrtcOrigin : std::uint8_t { named, loaded, wheel, conda, loader, cuda_home };

std::string_view name(NvrtcOrigin origin);

struct NvrtcLibrary {
  std::filesystem::path path;  // absolute, links resolved
  NvrtcOrigin origin{};
  int major = 0, minor = 0;
  std::string build_id;
  std::filesystem::path builtins;  // libnvrtc-builtins.so.<major>.<minor> beside it
  std::string problem;             // why it cannot be used; empty if it can

  std::string identity() const;  // "nvrtc-12.9-31f50d4d7c1c475a"
};

// The places to look, as plain values.
struct NvrtcSearch {
  std::optional<std::filesystem::path> named;  // RLK_NVRTC: this file and no other
  std::vector<std::filesystem::path> loaded;   // files in this process
  std::vector<std::filesystem::path> site_packages;
  std::vector<std::filesystem::path> conda_folders, loader_folders, cuda_home_folders;
};

// From VIRTUAL_ENV, CONDA_PREFIX, LD_LIBRARY_PATH, CUDA_HOME and CUDA_PATH, the loader's
// configuration and what is loaded in this process. `site_packages` come before VIRTUAL_ENV's.
NvrtcSearch nvrtc_search(const Lookup& environment,
                         std::vector<std::filesystem::path> site_packages);

// All that there are, best first, unusable ones last. Each file once.
std::vector<NvrtcLibrary> find_nvrtc(const NvrtcSearch& search);

// The first usable one whose major is not above `most_major` (the driver's CUDA major; nothing
// where there is no driver) and, if asked for, is `major`. RLK_NVRTC's is taken whatever its major.
// nullptr and the reason in `why` if there is none.
const NvrtcLibrary* choose_nvrtc(const std::vector<NvrtcLibrary>& found,
                                 std::optional<int> most_major, std::optional<int> major,
                                 std::string& why);

// Folders that the dynamic linker searches, read from a configuration such as /etc/ld.so.conf with
// its includes.
std::vector<std::filesystem::path> read_loader_folders(const std::filesystem::path& configuration);

}  // namespace rlk::jit
