// SPDX-License-Identifier: Apache-2.0
// The environment variables, read once; `rlk.jit.configure` changes a copy of these values.
#pragma once

#include "runtime/target.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rlk {

// sync: a miss compiles. async: a miss runs the generic variant and compiles in the background.
// off: never compiles; layers, else the generic variant.
enum class Policy : std::uint8_t { sync, async, off };

// Each thread has a stack and scratch of its own: a slip of the key must not ask for millions.
inline constexpr int k_max_threads = 1024;

inline constexpr int k_max_workspace_mib = 1 << 20;
inline constexpr int k_max_max_kernels = 1 << 20;
inline constexpr int k_max_max_sms = 1 << 20;

struct Settings {
  Policy policy = Policy::sync;          // RLK_JIT
  std::string log_level = "warn";        // RLK_LOG
  std::optional<Target> cpu_target;      // RLK_ARCH (a comma-separated list, one a backend)
  std::optional<Target> cuda_target;     // RLK_ARCH
  std::optional<int> num_threads;        // RLK_NUM_THREADS
  std::optional<std::string> cache_dir;  // RLK_CACHE_DIR
  std::vector<std::string> cache_path;   // RLK_CACHE_PATH: read-only layers, absolute, in order
  bool cache_shared_by_group = false;    // RLK_CACHE_SHARED
  std::uint64_t cache_size_bytes = std::uint64_t{1} << 30;  // RLK_CACHE_SIZE; 0: no limit
  std::optional<std::string> trace_file;  // RLK_TRACE: names of the kernels asked for go there
  std::optional<std::string> dump_dir;    // RLK_DUMP_DIR: sources that CUDA's compiler refused
  bool validate_sync = false;             // RLK_VALIDATE: CUDA, values are checked before a launch
  int workspace_mib = 512;                // RLK_WORKSPACE_MIB: CUDA, of a backward, about
  int max_sms = 0;                        // CUDA: that a persistent kernel takes; 0: all
  std::string tile;                       // CUDA: of all calls that have it; empty: chosen
  int max_kernels = 256;                  // RLK_MAX_KERNELS: specialized ones loaded at once
  std::filesystem::path package_folder;   // holds librlk_llvm.so and builtin/; beside this code
};

using Lookup = std::function<std::optional<std::string>(const char* name)>;

std::optional<std::string> process_environment(const char* variable);

// Throws InvalidArgument on a value that a variable cannot have, naming the variable.
Settings read_settings(const Lookup& environment);
Settings read_settings();

// These throw InvalidArgument, which names where the text came from: a variable, or an argument of
// configure.
Policy policy_named(const std::string& text, std::string_view source = "RLK_JIT");
bool validate_sync_named(const std::string& text, std::string_view source = "RLK_VALIDATE");
std::string_view name(Policy policy);

// "500000", "512K", "1GiB", "2GB": K, M, G, T and KiB, MiB, ... are powers of 1024, KB, MB, ... of
// 1000, in either case.
std::uint64_t bytes_named(const std::string& text, std::string_view source = "RLK_CACHE_SIZE");

// Sets both targets from "x86-64-v3" or "sm_90a,x86-64-v4"; a backend that is not named takes what
// the device has. Throws InvalidArgument on an unknown name, and on a CPU level that this host
// cannot run.
void set_arch(Settings& settings, const std::string& list, std::string_view source = "RLK_ARCH");

}  // namespace rlk
