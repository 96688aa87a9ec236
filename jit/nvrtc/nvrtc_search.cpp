// SPDX-License-Identifier: Apache-2.0
// The places to look for NVRTC, from the environment and this process.
#include "jit/nvrtc/nvrtc_finder.hpp"

#include <glob.h>
#include <link.h>

#include <fstream>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> matches(const fs::path& pattern) {
  std::vector<fs::path> paths;
  glob_t result{};
  if (glob(pattern.c_str(), 0, nullptr, &result) == 0) {
    paths.assign(result.gl_pathv, result.gl_pathv + result.gl_pathc);
  }
  globfree(&result);
  return paths;
}

void read_into(std::vector<fs::path>& folders, const fs::path& file, int depth) {
  if (depth > 8) return;  // a file that includes itself
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    line.resize(std::min(line.find('#'), line.size()));
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    if (line.starts_with("include ") || line.starts_with("include\t")) {
      const fs::path pattern = line.substr(line.find_first_not_of(" \t", 7));
      for (const auto& path : matches(file.parent_path() / pattern)) {
        read_into(folders, path, depth + 1);
      }
    } else if (line.front() == '/') {
      folders.emplace_back(line);
    }
  }
}

std::vector<fs::path> loaded_files() {
  std::vector<fs::path> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* into) {
        const fs::path path = info->dlpi_name;
        if (path.filename().string().starts_with("libnvrtc.so.") && path.is_absolute()) {
          static_cast<std::vector<fs::path>*>(into)->push_back(path);
        }
        return 0;
      },
      &files);
  return files;
}

}  // namespace

std::vector<fs::path> read_loader_folders(const fs::path& configuration) {
  std::vector<fs::path> folders;
  read_into(folders, configuration, 0);
  return folders;
}

NvrtcSearch nvrtc_search(const Lookup& environment, std::vector<fs::path> site_packages) {
  NvrtcSearch search;
  search.loaded = loaded_files();
  search.site_packages = std::move(site_packages);
  if (const auto venv = folder_if_given(environment, "VIRTUAL_ENV")) {
    for (auto& path : matches(fs::path(*venv) / "lib/python3*/site-packages")) {
      search.site_packages.push_back(std::move(path));
    }
  }
  if (const auto prefix = folder_if_given(environment, "CONDA_PREFIX")) {
    search.conda_folders = {fs::path(*prefix) / "lib"};
  }
  const std::string list = environment("LD_LIBRARY_PATH").value_or("");
  for (std::size_t begin = 0; begin < list.size();) {
    const auto end = std::min(list.find(':', begin), list.size());
    if (end > begin) search.loader_folders.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  for (auto& folder : read_loader_folders("/etc/ld.so.conf")) {
    search.loader_folders.push_back(std::move(folder));
  }
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) {
    search.loader_folders.emplace_back(folder);
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto home = folder_if_given(environment, variable)) {
      search.cuda_home_folders.push_back(fs::path(*home) / "lib64");
      search.cuda_home_folders.push_back(fs::path(*home) / "lib");
    }
  }
  search.cuda_home_folders.emplace_back("/usr/local/cuda/lib64");
  return search;
}

}  // namespace rlk::jit
