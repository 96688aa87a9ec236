// SPDX-License-Identifier: Apache-2.0
// The pass list. Written out rather than LLVM's -O3: as fast code for these kernels, a fifth less
// time to compile, and without the pass builder the library is 6 MB smaller.
#include "jit/llvm/compile.hpp"

#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/BasicAliasAnalysis.h>
#include <llvm/Analysis/BlockFrequencyInfo.h>
#include <llvm/Analysis/BranchProbabilityInfo.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/MemoryDependenceAnalysis.h>
#include <llvm/Analysis/MemorySSA.h>
#include <llvm/Analysis/OptimizationRemarkEmitter.h>
#include <llvm/Analysis/PostDominators.h>
#include <llvm/Analysis/ProfileSummaryInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScopedNoAliasAA.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/Analysis/TypeBasedAliasAnalysis.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/PassManager.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/IPO/GlobalOpt.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/ADCE.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/GVN.h>
#include <llvm/Transforms/Scalar/IndVarSimplify.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopDeletion.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/LoopRotation.h>
#include <llvm/Transforms/Scalar/LoopUnrollPass.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimpleLoopUnswitch.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Scalar/WarnMissedTransforms.h>

namespace rlk::llvm_seam {
namespace {

struct Analyses {
  explicit Analyses(llvm::Module& module, llvm::TargetMachine& machine);

  llvm::LoopAnalysisManager loop;
  llvm::FunctionAnalysisManager function;
  llvm::ModuleAnalysisManager module;
};

// Only what the passes below ask for; an analysis that is asked for and missing is a crash, which
// the tests would show.
Analyses::Analyses(llvm::Module& code, llvm::TargetMachine& machine) {
  llvm::TargetLibraryInfoImpl library(llvm::Triple(code.getTargetTriple()));
  library.disableAllFunctions();
  function.registerPass([&] { return llvm::TargetLibraryAnalysis(std::move(library)); });
  function.registerPass([&] { return machine.getTargetIRAnalysis(); });
  function.registerPass([] {
    llvm::AAManager manager;
    manager.registerFunctionAnalysis<llvm::BasicAA>();
    manager.registerFunctionAnalysis<llvm::ScopedNoAliasAA>();
    manager.registerFunctionAnalysis<llvm::TypeBasedAA>();
    return manager;
  });
  function.registerPass([] { return llvm::AssumptionAnalysis(); });
  function.registerPass([] { return llvm::BasicAA(); });
  function.registerPass([] { return llvm::BlockFrequencyAnalysis(); });
  function.registerPass([] { return llvm::BranchProbabilityAnalysis(); });
  function.registerPass([] { return llvm::DominatorTreeAnalysis(); });
  function.registerPass([] { return llvm::LoopAnalysis(); });
  function.registerPass([] { return llvm::MemoryDependenceAnalysis(); });
  function.registerPass([] { return llvm::MemorySSAAnalysis(); });
  function.registerPass([] { return llvm::OptimizationRemarkEmitterAnalysis(); });
  function.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  function.registerPass([] { return llvm::PostDominatorTreeAnalysis(); });
  function.registerPass([] { return llvm::ScalarEvolutionAnalysis(); });
  function.registerPass([] { return llvm::ScopedNoAliasAA(); });
  function.registerPass([] { return llvm::TypeBasedAA(); });
  loop.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  // indvars marks loops for a pass that is not run here.
  loop.registerPass([] { return llvm::ShouldRunExtraSimpleLoopUnswitch(); });
  module.registerPass([] { return llvm::PassInstrumentationAnalysis(); });
  module.registerPass([] { return llvm::ProfileSummaryAnalysis(); });

  function.registerPass([this] { return llvm::LoopAnalysisManagerFunctionProxy(loop); });
  function.registerPass([this] { return llvm::ModuleAnalysisManagerFunctionProxy(module); });
  loop.registerPass([this] { return llvm::FunctionAnalysisManagerLoopProxy(function); });
  module.registerPass([this] { return llvm::FunctionAnalysisManagerModuleProxy(function); });
}

template <class... Passes>
auto loops(bool uses_memory_ssa, Passes... passes) {
  llvm::LoopPassManager list;
  (list.addPass(std::move(passes)), ...);
  return llvm::createFunctionToLoopPassAdaptor(std::move(list), uses_memory_ssa);
}

llvm::LICMPass licm() { return llvm::LICMPass(llvm::LICMOptions()); }

}  // namespace

llvm::Expected<std::unique_ptr<llvm::TargetMachine>> machine_for(llvm::StringRef level) {
  const char* triple = "x86_64-unknown-linux-gnu";
  const bool known = level == "x86-64-v2" || level == "x86-64-v3" || level == "x86-64-v4";
  if (!known) return failure("unknown level " + llvm::Twine(level));
  std::string why;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, why);
  if (target == nullptr) return failure(why);

  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  options.FunctionSections = false;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      triple, level, "", options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
      llvm::CodeGenOptLevel::Default, /*JIT=*/false));
  if (machine == nullptr) return failure("no code generator for " + llvm::Twine(level));
  return machine;
}

void retarget(llvm::Module& module, const llvm::TargetMachine& machine) {
  module.setTargetTriple(machine.getTargetTriple().str());
  module.setDataLayout(machine.createDataLayout());
  for (llvm::Function& function : module) {
    // min-legal-vector-width 0, which clang puts on every function, would split 512-bit vectors.
    for (const char* attribute :
         {"target-cpu", "target-features", "tune-cpu", "min-legal-vector-width"}) {
      function.removeFnAttr(attribute);
    }
    if (machine.getTargetCPU() == "x86-64-v4") {
      function.addFnAttr("prefer-vector-width", "512");
    }
  }
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  using namespace llvm;  // NOLINT(google-build-using-namespace): a list of LLVM's names
  Analyses analyses(module, machine);

  FunctionPassManager simplify;
  simplify.addPass(SROAPass(SROAOptions::ModifyCFG));
  simplify.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
  simplify.addPass(SimplifyCFGPass());
  simplify.addPass(InstCombinePass());
  simplify.addPass(loops(true, LoopRotatePass(), licm()));
  simplify.addPass(InstCombinePass());
  simplify.addPass(loops(false, IndVarSimplifyPass(), LoopDeletionPass(), LoopFullUnrollPass(3)));
  // Unrolling has made the tiles' indices constant: now they can live in registers.
  simplify.addPass(SROAPass(SROAOptions::ModifyCFG));
  simplify.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
  simplify.addPass(InstCombinePass());
  simplify.addPass(GVNPass());
  simplify.addPass(SimplifyCFGPass());
  simplify.addPass(loops(true, LoopRotatePass(), licm()));
  simplify.addPass(ADCEPass());
  simplify.addPass(WarnMissedTransformationsPass());

  ModulePassManager list;
  list.addPass(AlwaysInlinerPass(/*InsertLifetimeIntrinsics=*/false));
  list.addPass(GlobalOptPass());
  list.addPass(GlobalDCEPass());
  list.addPass(createModuleToFunctionPassAdaptor(std::move(simplify)));
  list.addPass(GlobalDCEPass());
  list.run(module, analyses.module);
}

}  // namespace rlk::llvm_seam
