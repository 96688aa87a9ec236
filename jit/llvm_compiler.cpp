// SPDX-License-Identifier: Apache-2.0
// Calls the C functions of librlk_llvm.so and turns their answers into values and errors.
#include "jit/llvm_compiler.hpp"

#include "jit/llvm/rlk_llvm.h"
#include "runtime/error.hpp"
#include "runtime/refused.hpp"
#include "runtime/thread.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <utility>

namespace rlk::jit {
namespace {

#ifdef RLK_LLVM_IDENTITY
constexpr const char* k_identity = RLK_LLVM_IDENTITY;
constexpr bool k_built_with_llvm = true;
#else
constexpr const char* k_identity = "llvm-none";
constexpr bool k_built_with_llvm = false;
#endif

// The library, a stack and twice what the largest of our kernels was seen to take. LLVM itself ends
// in the middle of things where it finds too little.
constexpr std::size_t k_least_llvm_bytes = std::size_t{128} << 20;

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

std::vector<const char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size());
  for (const auto& string : strings) pointers.push_back(string.c_str());
  return pointers;
}

}  // namespace

struct LlvmCompiler::Functions {
  decltype(&rlk_llvm_compile) compile;
  decltype(&rlk_llvm_free) free;
};

namespace {

// Owns what a compile returned.
template <class Free>
class Result {
 public:
  explicit Result(Free free) : free_(free) {}
  ~Result() { free_(&result); }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  rlk_llvm_result result{};

 private:
  Free free_;
};

template <class Compile, class Free>
void call(Compile compile, const CompileRequest& request, rlk_llvm_output output,
          Result<Free>& into) {
  std::vector<rlk_llvm_constant> constants;
  constants.reserve(request.constants.size());
  for (const auto& [name, value] : request.constants) constants.push_back({name.c_str(), value});
  const auto entries = c_strings(request.entries);
  const auto options = c_strings(request.options);
  const rlk_llvm_request c_request{
      .bitcode = request.source.data(),
      .bitcode_bytes = request.source.size(),
      .level = request.target.c_str(),
      .constants = constants.data(),
      .num_constants = constants.size(),
      .entries = entries.data(),
      .num_entries = entries.size(),
      .options = options.data(),
      .num_options = options.size(),
      .output = output,
  };
  if (compile(&c_request, &into.result) != 0) {
    throw CompileError("{}: LLVM: {}", request.name,
                       into.result.log != nullptr ? into.result.log : "out of memory");
  }
}

}  // namespace

LlvmCompiler::LlvmCompiler(const std::filesystem::path& folder)
    : library_(folder / "librlk_llvm.so") {}

LlvmCompiler::~LlvmCompiler() = default;

std::string LlvmCompiler::identity() const { return k_identity; }

bool LlvmCompiler::available() const noexcept {
  if (!k_built_with_llvm) return false;
  const std::lock_guard lock(mutex_);
  if (functions_ != nullptr) return true;
  // With the rights that dlopen will have, not those of the real user.
  return open_error_.empty() && faccessat(AT_FDCWD, library_.c_str(), R_OK, AT_EACCESS) == 0;
}

std::string LlvmCompiler::why_not() const {
  if (!k_built_with_llvm) return "this build of rlk has no LLVM";
  if (available()) return {};
  const std::lock_guard lock(mutex_);
  return open_error_.empty() ? library_.string() + " is missing" : open_error_;
}

const LlvmCompiler::Functions& LlvmCompiler::open() {
  const std::lock_guard lock(mutex_);
  if (functions_ != nullptr) return *functions_;
  if (!open_error_.empty()) throw LoadError("{}", open_error_);
  if (!k_built_with_llvm) throw LoadError("this build of rlk has no LLVM");

  runtime::expect_descriptor();
  void* library = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    open_error_ = last_dl_error();
    throw LoadError("{}", open_error_);
  }
  const auto identity =
      reinterpret_cast<decltype(&rlk_llvm_identity)>(dlsym(library, "rlk_llvm_identity"));
  if (identity == nullptr || std::string_view(identity()) != k_identity) {
    // Its code would be stored under another compiler's name.
    open_error_ = library_.string() + ": expected " + k_identity + ", got " +
                  (identity == nullptr ? "something else" : identity());
    dlclose(library);
    throw LoadError("{}", open_error_);
  }
  functions_ = new Functions{
      reinterpret_cast<decltype(&rlk_llvm_compile)>(dlsym(library, "rlk_llvm_compile")),
      reinterpret_cast<decltype(&rlk_llvm_free)>(dlsym(library, "rlk_llvm_free")),
  };
  return *functions_;
}

template <class Use>
void LlvmCompiler::compile_to(int output, const CompileRequest& request, const Use& use) {
  runtime::expect_memory(k_least_llvm_bytes);
  runtime::with_compile_stack([&] {
    const Functions& llvm = open();
    Result answer(llvm.free);
    call(llvm.compile, request, static_cast<rlk_llvm_output>(output), answer);
    use(answer.result);
  });
}

CompiledCode LlvmCompiler::compile(const CompileRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  CompiledCode compiled;
  compile_to(rlk_llvm_object, request, [&](const rlk_llvm_result& result) {
    const auto* code = static_cast<const std::byte*>(result.code);
    compiled.code.assign(code, code + result.code_bytes);
    compiled.stats.code_bytes = result.machine_code_bytes;
    compiled.stats.local_bytes = result.stack_bytes;
    compiled.stats.num_spills = result.num_spills;
  });
  compiled.stats.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

std::string LlvmCompiler::assembly(const CompileRequest& request) {
  std::string text;
  compile_to(rlk_llvm_assembly, request, [&](const rlk_llvm_result& result) {
    text.assign(static_cast<const char*>(result.code), result.code_bytes);
  });
  return text;
}

}  // namespace rlk::jit
