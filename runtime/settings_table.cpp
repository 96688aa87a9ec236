// SPDX-License-Identifier: Apache-2.0
// The table of settings: what each is called, what it may be, where it is kept.
#include "runtime/settings.hpp"

namespace rlk {
namespace {

constexpr std::string_view k_policies[] = {"sync", "async", "off"};
constexpr std::string_view k_log_levels[] = {"trace", "debug", "info", "warn", "error", "off"};
constexpr std::string_view k_validate[] = {"async", "sync"};
constexpr std::string_view k_flag[] = {"False", "True"};
constexpr std::string_view k_cache_shared[] = {"owner", "group", "all"};

constexpr Setting k_settings[] = {
    Setting("policy", "RLK_JIT", &Settings::policy, {.words = k_policies},
            "What a call does if its kernel is neither loaded nor cached: `sync` compiles it "
            "first; `async` runs the generic kernel and compiles in the background, for which "
            "`rlk.jit.wait()` waits; `off` runs the generic kernel and never compiles. Results "
            "are the same bits"),
    Setting("arch", "RLK_ARCH", &Settings::arch, {.unset = "what each device has"},
            "Targets to compile for, separated by commas, one per backend: see "
            "[targets](#targets)"),
    Setting("num_threads", "RLK_NUM_THREADS", &Settings::num_threads,
            {.least = 1,
             .most = 1024,
             .unset = "the least of CPU affinity, cgroup quota and `OMP_NUM_THREADS`"},
            "Threads of the CPU kernels. Results do not depend on it"),
    Setting("log", "RLK_LOG", &Settings::log_level, {.words = k_log_levels},
            "The lowest level of messages that are written to stderr"),
    Setting("specialize", nullptr, &Settings::specialize, {.words = k_flag},
            "`False`: every call runs a generic kernel, so that no shape is compiled. Results "
            "are the same bits"),
    Setting("validate", "RLK_VALIDATE", &Settings::validate_sync, {.words = k_validate},
            "When wrong values in tensors are found on CUDA, and whether ranks compare their "
            "calls: see "
            "[validation](#validation)"),
    Setting(
        "workspace_mib", "RLK_WORKSPACE_MIB", &Settings::workspace_mib,
        {.least = 1, .most = 1 << 20},
        "CUDA: MiB of temporary memory that a backward takes, about: dZ of some columns for all "
        "rows, and sums of the gradient of hidden. 24 leaves of 192 columns and up to four such "
        "sums are the least. Copies of tensors whose strides the kernels cannot read come on "
        "top. Results do not depend on it"),
    Setting("saved_mib", "RLK_SAVED_MIB", &Settings::saved_mib, {.least = 0, .most = 1 << 20},
            "MiB that each forward of `linear_logp` that will be differentiated may keep of its "
            "exponentials, so that the backward need not compute them again: see "
            "[kept exponentials](linear_logp.md#kept-exponentials). Results do not depend on it"),
    Setting("max_sms", nullptr, &Settings::max_sms, {.least = 0, .most = 1 << 20},
            "CUDA: multiprocessors that a persistent kernel takes, so that others are left for "
            "communication, but two where its blocks work in pairs, and for which few rows are cut "
            "into parts; 0: all. Results do not depend on it"),
    Setting("tile", nullptr, &Settings::tile, {},
            "CUDA, for measurements: the tile of every kernel that has several, by its name in "
            "`rlk-jit tune`, such as `64-static`; `tuned`: what `tune` chose for this GPU, see "
            "[tiles](caching.md#tiles). Results do not depend on it"),
    Setting("cache_dir", "RLK_CACHE_DIR", &Settings::cache_dir,
            {.unset = "`$XDG_CACHE_HOME/rlk`, else `~/.cache/rlk`"},
            "Folder of the read-write cache layer, made at the first store"),
    Setting("", "RLK_CACHE_PATH", &Settings::cache_path, {.unset = "none"},
            "Folders of read-only cache layers, asked in order after `RLK_CACHE_DIR` and "
            "before the built-in layer"),
    Setting("", "RLK_CACHE_SIZE", &Settings::cache_size_bytes, {},
            "Budget of the read-write cache folder, see [caching](caching.md)"),
    Setting("", "RLK_CACHE_SHARED", &Settings::cache_shared, {.words = k_cache_shared},
            "Who is trusted to write the read-write cache folder, see "
            "[rights](caching.md#rights). `group`: members of the folder's group too; `all`: "
            "whoever can"),
    Setting("", "RLK_NVRTC", &Settings::nvrtc, {.unset = "the newest that fits the driver"},
            "File of the NVRTC to compile with, such as `/opt/cuda/lib64/libnvrtc.so.12`; no "
            "other is tried"),
    Setting("", "RLK_TRACE", &Settings::trace_file, {.unset = "none"},
            "File that gets the name of each kernel that is asked for, each once, one per "
            "line, from any number of processes: `rlk-jit warm --trace FILE` compiles them "
            "elsewhere"),
    Setting("", "RLK_DUMP_DIR", &Settings::dump_dir,
            {.unset = "the temp folder, at most 16 files per process"},
            "Folder for the source of a CUDA kernel that does not compile; the error names the "
            "file"),
};

}  // namespace

std::span<const Setting> all_settings() { return k_settings; }

}  // namespace rlk
