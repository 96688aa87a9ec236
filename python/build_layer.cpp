// SPDX-License-Identifier: Apache-2.0
// Run by the build: brings a folder to hold the generic variant of every op, pass, dtype and target
// that there are means for.
//   rlk_build_layer OUTPUT_FOLDER [--llvm FOLDER] [--nvrtc LIBRARY | --from LAYER]
// --llvm: CPU levels, by the librlk_llvm.so in FOLDER; --nvrtc: CUDA targets, by that library;
// --from: CUDA targets, taken from a layer made elsewhere. An entry that is there is not made anew:
// its name covers all that it was made from. What nothing asks for any more is removed.
#include "cache/disk_store.hpp"
#include "cache/entry_name.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "jit/op.hpp"
#include "jit/ship_kernel.hpp"
#include "runtime/cpu_count.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace rlk {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string output;
  std::string llvm, nvrtc, from;  // empty: not given
};

std::optional<Options> parse(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) return std::nullopt;
  Options options{.output = fs::absolute(argv[1]).string(), .llvm = {}, .nvrtc = {}, .from = {}};
  const std::map<std::string_view, std::string*> named = {
      {"--llvm", &options.llvm}, {"--nvrtc", &options.nvrtc}, {"--from", &options.from}};
  for (int i = 2; i < argc; i += 2) {
    const auto found = named.find(argv[i]);
    if (found == named.end()) return std::nullopt;
    *found->second = fs::absolute(argv[i + 1]).string();
  }
  return options;
}

// What an entry is filed under beside its key, and whether it was not there before.
struct Brought {
  std::string compiler;
  bool is_new = false;
};

// Where entries come from.
class Origin {
 public:
  virtual ~Origin() = default;
  virtual Brought bring(const jit::Specialization& spec, cache::DiskStore& layer) = 0;
};

class Compiled final : public Origin {
 public:
  explicit Compiled(std::unique_ptr<jit::Compiler> compiler) : compiler_(std::move(compiler)) {
    if (!compiler_->available()) throw LoadError("{}", compiler_->why_not());
  }

  Brought bring(const jit::Specialization& spec, cache::DiskStore& layer) override {
    return {compiler_->identity(), jit::ship_kernel(spec, *compiler_, layer).is_new};
  }

 private:
  std::unique_ptr<jit::Compiler> compiler_;
};

class Copied final : public Origin {
 public:
  explicit Copied(const std::string& folder)
      : folder_(folder), store_({.read_write = {}, .read_only = {folder}}) {
    for (const auto& entry : store_.list()) identities_[entry.digest] = entry.compiler;
  }

  Brought bring(const jit::Specialization& spec, cache::DiskStore& layer) override {
    const auto key = jit::build_key(spec);
    const auto found = identities_.find(key.digest());
    if (found == identities_.end()) {
      throw Error(fmt::format("{}: expected an entry in {}, it was made from other templates",
                              spec.text(), folder_));
    }
    const std::string& identity = found->second;
    if (layer.get(key, identity)) return {identity};
    const auto entry = store_.get(key, identity);
    if (!entry || !layer.put(*entry, identity)) {
      throw Error(fmt::format("could not copy {} from {}", spec.text(), folder_));
    }
    return {identity, true};
  }

 private:
  std::string folder_;
  cache::DiskStore store_;
  std::map<std::string, std::string> identities_;  // by digest of the key
};

struct Job {
  jit::Specialization spec;
  Origin* origin;
};

void add_jobs(std::vector<Job>& jobs, std::span<const Target> targets, Origin& origin) {
  for (const jit::Op* op : templates::ops()) {
    for (const Target target : targets) {
      for (const auto& spec : op->generic_variants(target)) jobs.push_back({spec, &origin});
    }
  }
}

// Runs the jobs on all cores. The names of the entries that the folder must hold then.
class Layer {
 public:
  explicit Layer(const std::string& folder)
      : folder_(folder), store_({.read_write = folder, .read_only = {}}) {}

  bool fill(const std::vector<Job>& jobs) {
    std::atomic<std::size_t> next = 0;
    {
      std::vector<std::jthread> workers;
      for (int i = 0; i < runtime::default_num_threads(); ++i) {
        workers.emplace_back([&] {
          for (std::size_t at = next++; at < jobs.size(); at = next++) run(jobs[at]);
        });
      }
    }
    for (const auto& problem : problems_) {
      std::fprintf(stderr, "rlk_build_layer: %s\n", problem.c_str());
    }
    return problems_.empty();
  }

  void remove_others() const {
    for (const auto& file : fs::directory_iterator(folder_)) {
      if (!names_.contains(file.path().filename().string())) fs::remove(file.path());
    }
  }

  void print_sizes() const {
    std::uintmax_t bytes = 0;
    for (const auto& name : names_) bytes += fs::file_size(fs::path(folder_) / name);
    std::printf("%zu generic kernels, %d of them new, %.1f MiB in %s\n", names_.size(), num_new_,
                static_cast<double>(bytes) / (1 << 20), folder_.c_str());
  }

 private:
  void run(const Job& job) {
    try {
      const Brought brought = job.origin->bring(job.spec, store_);
      const std::string digest = jit::build_key(job.spec).digest();
      const std::lock_guard lock(mutex_);
      names_.insert(cache::entry_file_name(digest, brought.compiler));
      num_new_ += brought.is_new ? 1 : 0;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      problems_.emplace(error.what());
    }
  }

  std::string folder_;
  cache::DiskStore store_;
  std::mutex mutex_;  // guards what follows
  std::set<std::string> names_;
  std::set<std::string> problems_;
  int num_new_ = 0;
};

int build(const Options& options) {
  std::vector<std::unique_ptr<Origin>> origins;
  std::vector<Job> jobs;
  if (!options.llvm.empty()) {
    origins.push_back(
        std::make_unique<Compiled>(std::make_unique<jit::LlvmCompiler>(options.llvm)));
    add_jobs(jobs, cpu_targets(), *origins.back());
  }
  if (!options.nvrtc.empty()) {
    jit::NvrtcCompiler::Options nvrtc;
    nvrtc.search = [&] {
      jit::NvrtcSearch search;
      search.named = options.nvrtc;
      return search;
    };
    origins.push_back(std::make_unique<Compiled>(std::make_unique<jit::NvrtcCompiler>(nvrtc)));
    add_jobs(jobs, cuda_targets(), *origins.back());
  }
  if (!options.from.empty()) {
    origins.push_back(std::make_unique<Copied>(options.from));
    add_jobs(jobs, cuda_targets(), *origins.back());
  }
  Layer layer(options.output);
  if (!layer.fill(jobs)) return 1;
  layer.remove_others();
  layer.print_sizes();
  return 0;
}

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  const auto options = rlk::parse(argc, argv);
  if (!options) {
    std::fputs(
        "usage: rlk_build_layer OUTPUT_FOLDER [--llvm FOLDER] [--nvrtc LIBRARY | --from LAYER]\n",
        stderr);
    return 2;
  }
  try {
    return rlk::build(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rlk_build_layer: %s\n", error.what());
    return 1;
  }
}
