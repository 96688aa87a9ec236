// SPDX-License-Identifier: Apache-2.0
// Looks into each place for libnvrtc.so.12 and .13 and reads version and build from files alone.
#include "jit/nvrtc/nvrtc_finder.hpp"

#include "jit/nvrtc/build_id.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view k_library = "libnvrtc.so.";
constexpr std::string_view k_builtins = "libnvrtc-builtins.so.";
constexpr int k_majors[] = {13, 12};

struct Version {
  int major = 0, minor = 0;
  auto operator<=>(const Version&) const = default;
};

// "12.9" or the start of "12.4.127"; nothing of "12".
std::optional<Version> parse_version(std::string_view text) {
  Version version;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto major = std::from_chars(begin, end, version.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc{} || (minor.ptr != end && *minor.ptr != '.')) return std::nullopt;
  return version;
}

std::optional<Version> version_of(const fs::path& file, std::string_view prefix) {
  const std::string name = file.filename();
  if (!name.starts_with(prefix)) return std::nullopt;
  return parse_version(std::string_view(name).substr(prefix.size()));
}

// Builtins are named by the exact version, so they tell a wheel's, whose library says "12" alone.
std::vector<Version> builtins_in(const fs::path& folder) {
  std::vector<Version> versions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto version = version_of(entry.path(), k_builtins)) versions.push_back(*version);
  }
  std::ranges::sort(versions, std::greater{});
  return versions;
}

int major_of(const std::string& file_name) {
  int major = 0;
  if (file_name.starts_with(k_library)) {
    std::from_chars(file_name.data() + k_library.size(), file_name.data() + file_name.size(),
                    major);
  }
  return major;
}

// Everything about a file that exists. `link` may be a link to it with a shorter name.
NvrtcLibrary describe(const fs::path& link, const fs::path& file, NvrtcOrigin origin) {
  NvrtcLibrary library{file, origin, 0, 0, {}, {}, {}};
  const auto own = version_of(file, k_library);
  library.major = own ? own->major : major_of(file.filename());
  if (library.major == 0) library.major = major_of(link.filename());
  const auto all = builtins_in(file.parent_path());
  const auto fitting = std::ranges::find_if(all, [&](const Version& version) {
    if (own) return version == *own;
    return library.major == 0 || version.major == library.major;
  });
  if (own) library.minor = own->minor;
  if (fitting == all.end()) {
    library.problem = "no libnvrtc-builtins of its version beside it";
    return library;
  }
  std::tie(library.major, library.minor) = std::tie(fitting->major, fitting->minor);
  library.builtins =
      file.parent_path() / fmt::format("{}{}.{}", k_builtins, library.major, library.minor);
  if (!fs::exists(library.builtins)) {  // named by a third number
    library.problem = fmt::format("no {} beside it", library.builtins.filename().string());
    return library;
  }
  const auto build_id = read_build_id(file);
  if (build_id) {
    library.build_id = *build_id;
  } else {
    library.problem = "no library of this machine's kind with a GNU build-id";
  }
  return library;
}

class Collector {
 public:
  void file(const fs::path& path, NvrtcOrigin origin) {
    std::error_code error;
    const auto real = fs::canonical(path, error);
    if (error || !fs::is_regular_file(real, error) || !seen_.insert(real).second) return;
    found.push_back(describe(path, real, origin));
  }

  void folder(const fs::path& path, NvrtcOrigin origin) {
    for (const int major : k_majors) file(path / fmt::format("{}{}", k_library, major), origin);
  }

  std::vector<NvrtcLibrary> found;

 private:
  std::set<fs::path> seen_;
};

}  // namespace

std::string_view name(NvrtcOrigin origin) {
  constexpr std::string_view names[] = {"RLK_NVRTC", "already loaded",  "wheel",
                                        "conda",     "system's loader", "CUDA_HOME"};
  return names[static_cast<int>(origin)];
}

// 64 bits of the build-id: a name that people can read, and no two builds of a version share it.
std::string NvrtcLibrary::identity() const {
  return fmt::format("nvrtc-{}.{}-{}", major, minor, build_id.substr(0, 16));
}

std::vector<NvrtcLibrary> find_nvrtc(const NvrtcSearch& search) {
  Collector collector;
  if (search.named) {
    collector.file(*search.named, NvrtcOrigin::named);
    if (collector.found.empty()) {
      NvrtcLibrary missing;
      missing.path = *search.named;
      missing.problem = "RLK_NVRTC names no file that can be read";
      collector.found.push_back(std::move(missing));
    }
  }
  for (const auto& path : search.loaded) collector.file(path, NvrtcOrigin::loaded);
  for (const auto& folder : search.site_packages) {
    collector.folder(folder / "nvidia/cu13/lib", NvrtcOrigin::wheel);
    collector.folder(folder / "nvidia/cuda_nvrtc/lib", NvrtcOrigin::wheel);
  }
  for (const auto& path : search.conda_folders) collector.folder(path, NvrtcOrigin::conda);
  for (const auto& path : search.loader_folders) collector.folder(path, NvrtcOrigin::loader);
  for (const auto& path : search.cuda_home_folders) collector.folder(path, NvrtcOrigin::cuda_home);
  const auto rank = [](const NvrtcLibrary& library) {
    return std::tuple(library.origin != NvrtcOrigin::named, !library.problem.empty(),
                      -library.major, -library.minor, library.origin, library.path);
  };
  std::ranges::sort(collector.found, std::less{}, rank);
  return std::move(collector.found);
}

const NvrtcLibrary* choose_nvrtc(const std::vector<NvrtcLibrary>& found,
                                 std::optional<int> most_major, std::optional<int> major,
                                 std::string& why) {
  why.clear();
  if (found.empty()) {
    why = "no NVRTC found: install nvidia-cuda-nvrtc-cu12 or set RLK_NVRTC";
    return nullptr;
  }
  for (const NvrtcLibrary& library : found) {
    const bool is_named = library.origin == NvrtcOrigin::named;
    if (!library.problem.empty()) {
      if (why.empty()) why = fmt::format("{}: {}", library.path.string(), library.problem);
      if (is_named) return nullptr;  // what was asked for, and nothing else in its place
      continue;
    }
    if (is_named) return &library;
    if (most_major && library.major > *most_major) {
      why = fmt::format("{}: NVRTC {}.{} is too new for a driver of CUDA {}", library.path.string(),
                        library.major, library.minor, *most_major);
      continue;
    }
    if (major && library.major != *major) {
      if (why.empty()) {
        why = fmt::format("no NVRTC {} found, the newest is {}.{}", *major, library.major,
                          library.minor);
      }
      continue;
    }
    why.clear();
    return &library;
  }
  return nullptr;
}

}  // namespace rlk::jit
