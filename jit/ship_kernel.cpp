// SPDX-License-Identifier: Apache-2.0
// Looks a kernel up in a folder of the build, or compiles, judges and stores it.
#include "jit/ship_kernel.hpp"

#include "jit/build_key.hpp"
#include "jit/metadata.hpp"
#include "runtime/error.hpp"

namespace rlk::jit {
namespace {

// PTX has no such numbers, and a CPU kernel's spills are no alarm.
void refuse_slow(const Specialization& spec, const CompileStats& stats) {
  if (backend(spec.target) == Backend::cpu || spec.target == Target::compute_80) return;
  if (stats.spilled_bytes != 0 || stats.local_bytes != 0) {
    throw CompileError("{}: expected no spill and no stack frame, got {} and {} bytes", spec.text(),
                       stats.spilled_bytes, stats.local_bytes);
  }
  if (stats.serializes_wgmma) {
    throw CompileError("{}: expected wgmma instructions that overlap, got serialized ones",
                       spec.text());
  }
}

}  // namespace

ShippedKernel ship_kernel(const Specialization& spec, Compiler& compiler, cache::DiskStore& store) {
  const cache::Key key = build_key(spec);
  const std::string identity = compiler.identity();
  if (auto entry = store.get(key, identity)) return {*std::move(entry)};
  const CompileRequest request = compile_request(spec);
  CompiledCode compiled = compiler.compile(request);
  refuse_slow(spec, compiled.stats);
  ShippedKernel shipped{
      {key.bytes, metadata(spec, request, compiled.stats, identity), std::move(compiled.code)},
      true};
  if (!store.put(shipped.entry, identity)) throw Error("could not store " + spec.text());
  return shipped;
}

}  // namespace rlk::jit
