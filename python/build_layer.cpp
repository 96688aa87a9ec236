// SPDX-License-Identifier: Apache-2.0
// Run by the build: compiles the generic variant of every op, pass, dtype and target into a folder.
//   rlk_build_layer FOLDER_OF_LLVM_LIBRARY OUTPUT_FOLDER
#include "cache/disk_store.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/metadata.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <cstdio>
#include <filesystem>

int main(int argc, char** argv) {
  using namespace rlk;
  if (argc != 3) {
    std::fputs("usage: rlk_build_layer FOLDER_OF_LLVM_LIBRARY OUTPUT_FOLDER\n", stderr);
    return 2;
  }
  try {
    const auto output = std::filesystem::absolute(argv[2]).string();
    jit::LlvmCompiler compiler(argv[1]);
    cache::DiskStore store({output, {}, cache::Sharing::owner});
    int num_entries = 0;
    for (const jit::Op* op : templates::ops()) {
      for (const Target target : cpu_targets()) {
        for (const auto& spec : op->generic_variants(target)) {
          const auto key = jit::build_key(spec);
          const auto request = jit::compile_request(spec);
          auto compiled = compiler.compile(request);
          store.put({key.bytes, jit::metadata(spec, request, compiled.stats, compiler.identity()),
                     std::move(compiled.code)},
                    compiler.identity());
          if (!store.get(key, compiler.identity())) throw Error("could not store " + spec.text());
          ++num_entries;
        }
      }
    }
    std::printf("%d generic kernels in %s\n", num_entries, output.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rlk_build_layer: %s\n", error.what());
    return 1;
  }
}
