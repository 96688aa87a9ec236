// SPDX-License-Identifier: Apache-2.0
// Code generation, diagnostics, and a check that the loader will take the object.
#include "jit/llvm/compile.hpp"

#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/raw_ostream.h>

namespace rlk::llvm_seam {
namespace {

int64_t argument(const llvm::DiagnosticInfoOptimizationBase& remark, llvm::StringRef key) {
  int64_t value = 0;
  for (const auto& arg : remark.getArgs()) {
    if (arg.Key == key) (void)llvm::StringRef(arg.Val).getAsInteger(10, value);
  }
  return value;
}

}  // namespace

bool Diagnostics::handleDiagnostics(const llvm::DiagnosticInfo& info) {
  if (const auto* remark = llvm::dyn_cast<llvm::DiagnosticInfoOptimizationBase>(&info)) {
    if (remark->getRemarkName() == "StackSize") {
      stack_bytes_ = std::max(stack_bytes_, argument(*remark, "NumStackBytes"));
      return true;
    }
    if (remark->getRemarkName() == "SpillReloadCopies") {
      num_spills_ = std::max(num_spills_, static_cast<int32_t>(argument(*remark, "NumSpills")));
      return true;
    }
  }
  const bool missed = info.getKind() == llvm::DK_OptimizationFailure && !allow_missed_;
  if (info.getSeverity() == llvm::DS_Error || missed) failed_ = true;
  if (info.getSeverity() == llvm::DS_Error || info.getSeverity() == llvm::DS_Warning) {
    llvm::raw_string_ostream stream(log_);
    if (!log_.empty()) stream << '\n';
    llvm::DiagnosticPrinterRawOStream printer(stream);
    if (const auto* missed_one = llvm::dyn_cast<llvm::DiagnosticInfoOptimizationFailure>(&info)) {
      stream << missed_one->getFunction().getName() << ": ";
    }
    info.print(printer);
  }
  return true;
}

llvm::Error emit(llvm::Module& module, llvm::TargetMachine& machine, rlk_llvm_output output,
                 llvm::SmallVectorImpl<char>& code) {
  llvm::raw_svector_ostream stream(code);
  llvm::legacy::PassManager passes;
  llvm::TargetLibraryInfoImpl library(llvm::Triple(module.getTargetTriple()));
  library.disableAllFunctions();
  passes.add(new llvm::TargetLibraryInfoWrapperPass(library));
  const auto type = output == rlk_llvm_assembly ? llvm::CodeGenFileType::AssemblyFile
                                                : llvm::CodeGenFileType::ObjectFile;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true)) {
    return failure("the code generator cannot write this output");
  }
  passes.run(module);
  return llvm::Error::success();
}

llvm::Expected<int64_t> check_object(llvm::StringRef bytes) {
  auto object = llvm::object::ObjectFile::createELFObjectFile(
      llvm::MemoryBufferRef(bytes, "object"), /*InitContent=*/true);
  if (!object) return object.takeError();
  for (const llvm::object::SymbolRef& symbol : (*object)->symbols()) {
    auto flags = symbol.getFlags();
    if (!flags) return flags.takeError();
    auto name = symbol.getName();
    if (!name) return name.takeError();
    if ((*flags & llvm::object::SymbolRef::SF_Undefined) != 0 && !name->empty()) {
      return failure("calls " + *name + ", which a kernel cannot have");
    }
  }
  int64_t code_bytes = 0;
  for (const llvm::object::SectionRef& section : (*object)->sections()) {
    const uint64_t flags = llvm::object::ELFSectionRef(section).getFlags();
    if ((flags & llvm::ELF::SHF_ALLOC) == 0) continue;
    if ((flags & llvm::ELF::SHF_WRITE) != 0 && section.getSize() > 0) {
      return failure("has writable global data, which a kernel cannot have");
    }
    if (section.isText()) code_bytes += static_cast<int64_t>(section.getSize());
  }
  return code_bytes;
}

}  // namespace rlk::llvm_seam
