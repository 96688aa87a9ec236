// SPDX-License-Identifier: Apache-2.0
// The C boundary of librlk_llvm.so.
//
// LLVM ends the process on what it takes for a bug of its caller (report_fatal_error, for example
// an instruction that the level lacks). Nothing may be thrown through its frames, so the handler
// jumps back to the boundary, as clang's own crash recovery does: the compile fails with LLVM's
// reason, and what it had allocated stays allocated. Where operator new finds no memory it throws,
// and the frames up to catch_all() clean nothing up either.
#include "jit/llvm/compile.hpp"

#include <llvm/IR/LLVMContext.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/TargetSelect.h>

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace rlk::llvm_seam {
namespace {

thread_local std::jmp_buf* way_out = nullptr;
thread_local char* fatal_reason = nullptr;

void leave(void*, const char* reason, bool) {
  if (way_out == nullptr) return;  // LLVM then aborts
  fatal_reason = strdup(reason);
  std::longjmp(*way_out, 1);
}

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::install_fatal_error_handler(leave);
    llvm::install_bad_alloc_error_handler(leave);  // of malloc
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

char* copy(llvm::StringRef text) {
  auto* bytes = static_cast<char*>(std::malloc(text.size() + 1));
  if (bytes != nullptr) {
    std::memcpy(bytes, text.data(), text.size());
    bytes[text.size()] = '\0';
  }
  return bytes;
}

llvm::Error compile(llvm::LLVMContext& context, const Diagnostics& diagnostics,
                    const rlk_llvm_request& request, rlk_llvm_result& result) {
  auto machine = machine_for(request.level);
  if (!machine) return machine.takeError();
  auto module = read_reachable(context, request);
  if (!module) return module.takeError();
  if (llvm::Error error = bind_constants(**module, request)) return error;
  retarget(**module, **machine);
  optimize(**module, **machine);
  if (diagnostics.failed()) return failure("not optimized as the template asks");

  llvm::SmallVector<char, 0> code;
  if (llvm::Error error = emit(**module, **machine, request.output, code)) return error;
  if (diagnostics.failed()) return failure("no code");
  const llvm::StringRef bytes(code.data(), code.size());
  if (request.output == rlk_llvm_object) {
    auto machine_code_bytes = check_object(bytes);
    if (!machine_code_bytes) return machine_code_bytes.takeError();
    result.machine_code_bytes = *machine_code_bytes;
  }
  result.stack_bytes = diagnostics.stack_bytes();
  result.num_spills = diagnostics.num_spills();
  result.code = copy(bytes);
  result.code_bytes = bytes.size();
  return result.code != nullptr ? llvm::Error::success() : failure("out of memory");
}

void compile_and_report(const rlk_llvm_request& request, rlk_llvm_result& result) {
  initialize();
  bool allow_missed_transforms = false;
  for (const char* option : std::span(request.options, request.num_options)) {
    if (llvm::StringRef(option) != "allow-missed-transforms") {
      result.log = copy(("unknown option " + llvm::Twine(option)).str());
      return;
    }
    allow_missed_transforms = true;
  }
  llvm::LLVMContext context;
  auto owned = std::make_unique<Diagnostics>(allow_missed_transforms);
  const Diagnostics& diagnostics = *owned;
  context.setDiagnosticHandler(std::move(owned), /*RespectFilters=*/false);
  std::string log;
  if (llvm::Error error = compile(context, diagnostics, request, result)) {
    log = llvm::toString(std::move(error));
  }
  if (!diagnostics.log().empty()) log += (log.empty() ? "" : "\n") + diagnostics.log();
  if (!log.empty()) result.log = copy(log);
}

}  // namespace
}  // namespace rlk::llvm_seam

extern "C" int rlk_llvm_compile(const rlk_llvm_request* request, rlk_llvm_result* result) {
  using namespace rlk::llvm_seam;  // NOLINT(google-build-using-namespace)
  std::memset(result, 0, sizeof *result);
  // Nothing with a destructor may live in this frame.
  std::jmp_buf here;
  if (setjmp(here) == 0) {
    way_out = &here;
    catch_all(compile_and_report, *request, *result);
  } else {
    std::free(result->code);
    std::free(result->log);
    result->code = nullptr;
    result->log = fatal_reason;
  }
  way_out = nullptr;
  return result->code != nullptr ? 0 : 1;
}

extern "C" void rlk_llvm_free(rlk_llvm_result* result) {
  std::free(result->code);
  std::free(result->log);
  std::memset(result, 0, sizeof *result);
}

extern "C" const char* rlk_llvm_identity() { return RLK_LLVM_IDENTITY; }
