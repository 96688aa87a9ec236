// SPDX-License-Identifier: Apache-2.0
// The CPU's loader: an ELF image and its symbols.
#include "runtime/elf_image.hpp"
#include "runtime/error.hpp"
#include "runtime/loader.hpp"

namespace rlk::runtime {
namespace {

class CpuLoader final : public Loader {
 public:
  Target target(int) override {
    static const auto host = host_cpu_target();
    if (!host) throw Unsupported("target: expected an x86-64 processor of level v2 or higher");
    return *host;
  }

  void load(LoadedKernel& kernel, std::span<const std::byte> code,
            std::span<const char* const> entries) override {
    auto image = std::make_shared<ElfImage>(ElfImage::load(code));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      kernel.entries[i] = image->symbol(entries[i]);
    }
    kernel.image = std::move(image);
  }

  void prepare(const LoadedKernel&, int) override {}
  bool is_capturing(int, void*) override { return false; }
};

}  // namespace

std::unique_ptr<Loader> make_cpu_loader() { return std::make_unique<CpuLoader>(); }

}  // namespace rlk::runtime
