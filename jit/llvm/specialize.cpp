// SPDX-License-Identifier: Apache-2.0
// Reads a template's bitcode and binds its constants.
#include "jit/llvm/compile.hpp"

#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/ADT/StringSet.h>
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/PassInstrumentation.h>
#include <llvm/IR/PassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>

namespace rlk::llvm_seam {
namespace {

// Adds the functions that a value names, through constant expressions and initializers.
void add_functions(const llvm::Value* value, llvm::SmallPtrSetImpl<const llvm::Value*>& seen,
                   llvm::SmallVectorImpl<llvm::Function*>& found) {
  const auto* constant = llvm::dyn_cast<llvm::Constant>(value);
  if (constant == nullptr || !seen.insert(constant).second) return;
  if (const auto* function = llvm::dyn_cast<llvm::Function>(constant)) {
    found.push_back(const_cast<llvm::Function*>(function));
    return;
  }
  for (const llvm::Use& operand : constant->operands()) add_functions(operand, seen, found);
}

llvm::Error bind_constant(llvm::Module& module, const rlk_llvm_constant& constant) {
  llvm::GlobalVariable* variable = module.getGlobalVariable(constant.name, /*AllowInternal=*/true);
  if (variable == nullptr) return llvm::Error::success();  // of the op's other backend alone
  if (!variable->isDeclaration()) {
    return failure("constant " + llvm::Twine(constant.name) + " has a value in the template");
  }
  auto* type = llvm::dyn_cast<llvm::IntegerType>(variable->getValueType());
  if (type == nullptr || type->getBitWidth() > 64) {
    return failure("constant " + llvm::Twine(constant.name) + " is not of an integer type");
  }
  const unsigned bits = type->getBitWidth();
  if (!llvm::isIntN(bits, constant.value) &&
      !(constant.value < 0 && llvm::isUIntN(bits, static_cast<uint64_t>(constant.value)))) {
    return failure("value " + llvm::Twine(constant.value) + " does not fit constant " +
                   constant.name + " of " + llvm::Twine(bits) + " bits");
  }
  variable->setInitializer(llvm::ConstantInt::getSigned(type, constant.value));
  variable->setConstant(true);
  variable->setVisibility(llvm::GlobalValue::DefaultVisibility);
  variable->setLinkage(llvm::GlobalValue::InternalLinkage);
  return llvm::Error::success();
}

}  // namespace

llvm::Error failure(const llvm::Twine& reason) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), reason);
}

llvm::Expected<std::unique_ptr<llvm::Module>> read_reachable(llvm::LLVMContext& context,
                                                             const rlk_llvm_request& request) {
  const llvm::MemoryBufferRef buffer(
      llvm::StringRef(static_cast<const char*>(request.bitcode), request.bitcode_bytes),
      "template");
  auto read = llvm::getLazyBitcodeModule(buffer, context);
  if (!read) return read.takeError();
  std::unique_ptr<llvm::Module> module = std::move(*read);
  // The path would end up in the object.
  module->setSourceFileName("rlk");

  llvm::SmallVector<llvm::Function*> to_read;
  llvm::SmallPtrSet<const llvm::Value*, 32> seen;
  for (const char* name : std::span(request.entries, request.num_entries)) {
    llvm::Function* entry = module->getFunction(name);
    if (entry == nullptr || (entry->isDeclaration() && !entry->isMaterializable())) {
      return failure("the template has no entry point " + llvm::Twine(name));
    }
    to_read.push_back(entry);
  }
  for (llvm::GlobalVariable& variable : module->globals()) {
    if (variable.hasInitializer()) add_functions(variable.getInitializer(), seen, to_read);
  }
  while (!to_read.empty()) {
    llvm::Function* function = to_read.pop_back_val();
    if (!function->isMaterializable()) continue;
    if (llvm::Error error = function->materialize()) return error;
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      for (const llvm::Use& operand : instruction.operands()) {
        add_functions(operand, seen, to_read);
      }
    }
  }
  // The rest become declarations. They must not be erased before materializeAll: the reader may
  // still hold them.
  for (llvm::Function& function : *module) {
    if (function.isMaterializable()) {
      function.deleteBody();
      function.setComdat(nullptr);
    }
  }
  if (llvm::Error error = module->materializeAll()) return error;
  return module;
}

llvm::Error bind_constants(llvm::Module& module, const rlk_llvm_request& request) {
  for (const rlk_llvm_constant& constant : std::span(request.constants, request.num_constants)) {
    if (llvm::Error error = bind_constant(module, constant)) return error;
  }

  llvm::StringSet<> entries;
  for (const char* name : std::span(request.entries, request.num_entries)) entries.insert(name);
  for (llvm::GlobalValue& value : module.global_values()) {
    if (value.isDeclaration()) continue;
    if (entries.contains(value.getName())) {
      value.setLinkage(llvm::GlobalValue::ExternalLinkage);
      value.setDSOLocal(true);
    } else {
      value.setVisibility(llvm::GlobalValue::DefaultVisibility);
      value.setLinkage(llvm::GlobalValue::InternalLinkage);
    }
    if (auto* object = llvm::dyn_cast<llvm::GlobalObject>(&value)) object->setComdat(nullptr);
  }
  llvm::ModuleAnalysisManager analyses;
  analyses.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  llvm::GlobalDCEPass().run(module, analyses);

  for (const llvm::GlobalVariable& variable : module.globals()) {
    if (variable.isDeclaration()) {
      return failure("constant " + variable.getName() + " has no value");
    }
  }
  std::string why;
  llvm::raw_string_ostream stream(why);
  if (llvm::verifyModule(module, &stream)) return failure("invalid code: " + llvm::Twine(why));
  return llvm::Error::success();
}

}  // namespace rlk::llvm_seam
