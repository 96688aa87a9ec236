// SPDX-License-Identifier: Apache-2.0
// Source and constants in, cubin or PTX out, with what the compiler said of it.
#include "jit/nvrtc/nvrtc_compiler.hpp"

#include "cache/files/open_file.hpp"
#include "jit/nvrtc/compile_log.hpp"
#include "jit/nvrtc/cubin_info.hpp"
#include "runtime/cpu_count.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/refused.hpp"
#include "runtime/thread.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

namespace rlk::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t k_least_nvrtc_bytes = std::size_t{256} << 20;  // the library and a compile

bool is_ptx(const CompileRequest& request) { return request.target.starts_with("compute_"); }

// Threads that NVRTC may make. It ends the process where the system refuses it one, so the system
// is asked first.
int compile_threads() {
  constexpr int k_most = 4;  // the kernels of a backward that take long are three
  static const int wanted = std::min(runtime::usable_cpus(), k_most);
  try {
    runtime::expect_memory(2 * k_least_nvrtc_bytes);
  } catch (const Refused&) {
    return 1;
  }
  return runtime::grants_threads(wanted) ? wanted : 1;
}

// Switches that change no result of the code, so that they are in no key.
std::vector<std::string> add_switches(const CompileRequest& request, const NvrtcLibrary& library) {
  std::vector<std::string> options = request.options;
  if (std::pair(library.major, library.minor) >= std::pair(12, 9)) {
    // Its own cache would open libcuda and initialize it within a compile: no fork after that.
    options.push_back("--no-cache");
    // The kernels of a program at once. The instructions are the same for every number above 1, and
    // those of 1 but for the addresses of a small kernel; not so for sm_100 and sm_120, where 12.9
    // gives other registers from run to run, and some spill.
    const bool is_blackwell = request.target == "sm_100" || request.target == "sm_120";
    if (const int threads = is_blackwell ? 1 : compile_threads(); threads > 1) {
      options.push_back(fmt::format("--split-compile={}", threads));
    }
  }
  // Else it raises the stack limit of the whole process.
  options.push_back("--modify-stack-limit=false");
  return options;
}

// Only what may stand in a file name.
std::string file_stem(std::string name) {
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_'; }, '-');
  return name.substr(0, 150);
}

// A process that meets ever new kernels, none of which compiles, must not fill the temp folder.
constexpr int k_most_kept = 16;

// The path written, or why there is none, in words for the error's last line.
std::string dump(const CompileRequest& request, const std::string& source,
                 const std::optional<std::string>& wanted) {
  std::error_code error;
  const fs::path folder = wanted ? fs::path(*wanted) : fs::temp_directory_path(error);
  if (folder.empty()) return fmt::format("not written: temp folder: {}", error.message());
  if (wanted) fs::create_directories(folder, error);
  // Unguessable and readable by its owner alone: the temp folder belongs to everyone.
  std::random_device random;
  const std::string name = fmt::format("rlk-{}-{:08x}.cu", file_stem(request.name), random());
  std::string path = (folder / name).string();
  cache::OpenFile file(cache::posix_file_system(), path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  const int failed = file.error() != 0 ? file.error() : file.write(source.data(), source.size());
  if (failed == 0) return path;
  return fmt::format("not written: {}: {}", folder.string(), cache::error_text(failed));
}

// The largest numbers over the kernels; every entry asked for must be there.
void read_stats(const CompileRequest& request, const std::vector<CubinKernel>& kernels,
                CompileStats& stats) {
  stats.code_bytes = 0;
  for (const CubinKernel& kernel : kernels) {
    stats.code_bytes += kernel.code_bytes;
    stats.registers = std::max(stats.registers, kernel.registers);
    stats.shared_bytes = std::max(stats.shared_bytes, kernel.shared_bytes);
    stats.local_bytes = std::max(stats.local_bytes, kernel.local_bytes);
  }
  for (const auto& entry : request.entries) {
    if (std::ranges::find(kernels, entry, &CubinKernel::name) == kernels.end()) {
      throw CompileError("{}: entry: expected a kernel {}, the code has none", request.name, entry);
    }
  }
}

void finish_ptx(const CompileRequest& request, std::vector<std::byte>& ptx) {
  if (!pack_ptx(ptx)) {
    throw CompileError("{}: PTX: expected a .version line, found none", request.name);
  }
  const std::string_view text(reinterpret_cast<const char*>(ptx.data()), ptx.size());
  for (const auto& entry : request.entries) {
    if (!ptx_has_entry(text, entry)) {
      throw CompileError("{}: entry: expected a kernel {}, the code has none", request.name, entry);
    }
  }
}

}  // namespace

struct NvrtcCompiler::Choice {
  std::vector<NvrtcLibrary> found;
  const NvrtcLibrary* chosen = nullptr;
  std::string why_not;
};

std::vector<std::string> nvrtc_options(Target target) {
  std::vector<std::string> options{fmt::format("--gpu-architecture={}", name(target)),
                                   "-std=c++20",  // every NVRTC 12 has it
                                   // No compiler may choose contractions: docs/numerics.
                                   "--fmad=false",
                                   // Templates hold plain functions that kernels call.
                                   "--device-as-default-execution-space"};
  // Spills are read from ptxas's report. It alters the cubin's bytes, so it is always on.
  if (target != Target::compute_80) options.push_back("--ptxas-options=-v");
  return options;
}

std::string nvrtc_source(const CompileRequest& request) {
  std::string source;
  for (const auto& [name, value] : request.constants) {
    source += fmt::format("constexpr long long {} = {};\n", name, value);
  }
  source.append(reinterpret_cast<const char*>(request.source.data()), request.source.size());
  return source;
}

NvrtcCompiler::NvrtcCompiler(Options options) : options_(std::move(options)) {}

NvrtcCompiler::~NvrtcCompiler() = default;

const NvrtcCompiler::Choice& NvrtcCompiler::choice() const {
  const std::lock_guard lock(mutex_);
  if (choice_ == nullptr) {
    runtime::expect_descriptor();  // else there would be none for good
    auto made = std::make_unique<Choice>();
    made->found = find_nvrtc(options_.search());
    std::optional<int> most_major;
    if (const auto version = options_.driver_version()) most_major = *version / 1000;
    made->chosen = choose_nvrtc(made->found, most_major, options_.major, made->why_not);
    choice_ = std::move(made);
  }
  return *choice_;
}

const std::vector<NvrtcLibrary>& NvrtcCompiler::found() const { return choice().found; }

const NvrtcLibrary* NvrtcCompiler::chosen() const { return choice().chosen; }

std::string NvrtcCompiler::identity() const {
  const NvrtcLibrary* library = chosen();
  return library != nullptr ? library->identity() : "nvrtc-none";
}

bool NvrtcCompiler::available() const noexcept {
  try {
    return why_not().empty();
  } catch (const std::exception&) {
    return false;
  }
}

std::string NvrtcCompiler::why_not() const {
  const Choice& made = choice();
  if (made.chosen == nullptr) return made.why_not;
  const std::lock_guard lock(mutex_);
  return open_error_;
}

const NvrtcTable& NvrtcCompiler::open() {
  const Choice& made = choice();
  if (made.chosen == nullptr) throw LoadError("{}", made.why_not);
  const std::lock_guard lock(mutex_);
  if (table_ != nullptr) return *table_;
  if (!open_error_.empty()) throw LoadError("{}", open_error_);
  runtime::expect_descriptor();
  try {
    table_ = std::make_unique<const NvrtcTable>(open_nvrtc(*made.chosen));
  } catch (const LoadError& error) {
    open_error_ = error.what();
    throw;
  }
  return *table_;
}

// The error's last line; nothing for a probe.
std::string NvrtcCompiler::keep_refused(const CompileRequest& request, const std::string& source) {
  if (!request.keep_refused) return "";
  if (!options_.dump_dir && num_kept_.fetch_add(1) >= k_most_kept) {
    return fmt::format("\nsource: not written after {} others; set RLK_DUMP_DIR", k_most_kept);
  }
  return "\nsource: " + dump(request, source, options_.dump_dir);
}

CompiledCode NvrtcCompiler::compile(const CompileRequest& request) {
  runtime::expect_memory(k_least_nvrtc_bytes);
  CompiledCode compiled;
  runtime::with_compile_stack([&] { compiled = compile_here(request); });
  return compiled;
}

CompiledCode NvrtcCompiler::compile_here(const CompileRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const NvrtcTable& nvrtc = open();
  const NvrtcLibrary& library = *chosen();
  const std::string source = nvrtc_source(request);
  NvrtcOutput output = [&] {
    try {
      return run_nvrtc(nvrtc, source, add_switches(request, library), is_ptx(request),
                       options_.is_cancelled);
    } catch (const CompileError& error) {
      throw CompileError("{}: {}", request.name, error.what());
    }
  }();
  if (output.code != 0 && options_.is_cancelled && options_.is_cancelled()) {
    throw CompileError("{}: cancelled", request.name);
  }
  if (output.code != 0) {
    throw CompileError("{}: NVRTC {}.{}: {} ({}): {}{}", request.name, library.major, library.minor,
                       output.error, output.code, output.log, keep_refused(request, source));
  }
  if (!output.log.empty()) log().debug("{}: {}", request.name, output.log);

  CompiledCode compiled;
  compiled.code = std::move(output.binary);
  if (is_ptx(request)) {
    finish_ptx(request, compiled.code);
  } else {
    const auto kernels = read_cubin(compiled.code);
    // A form that is not known is no reason to refuse the code: its numbers stay unknown.
    if (kernels) read_stats(request, *kernels, compiled.stats);
    compiled.stats.spilled_bytes = spilled_bytes(output.log);
    compiled.stats.serializes_wgmma = serializes_wgmma(output.log);
  }
  compiled.stats.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

}  // namespace rlk::jit
