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
  std::optional<cache::Entry> stored = store.get(key, identity);
  ShippedKernel shipped{.entry = {}, .is_new = !stored};
  if (stored) {
    shipped.entry = *std::move(stored);
  } else {
    const CompileRequest request = compile_request(spec);
    CompiledCode compiled = compiler.compile(request);
    refuse_slow(spec, compiled.stats);
    shipped.entry = {key.bytes, metadata(spec, request, compiled.stats, identity),
                     std::move(compiled.code)};
  }
  // Whenever it was compiled, what is shipped has the same bytes.
  const std::string told = without_times(shipped.entry.metadata);
  if (shipped.is_new || told != shipped.entry.metadata) {
    shipped.entry.metadata = told;
    if (!store.put(shipped.entry, identity)) throw Error("could not store " + spec.text());
  }
  return shipped;
}

}  // namespace rlk::jit
