// SPDX-License-Identifier: Apache-2.0
// The CPU's loader: an ELF image and its symbols.
#include "runtime/elf_image.hpp"
#include "runtime/loader.hpp"

namespace rlk::runtime {
namespace {

class CpuLoader final : public Loader {
 public:
  void load(LoadedKernel& kernel, std::span<const std::byte> code,
            std::span<const char* const> entries) override {
    auto image = std::make_shared<ElfImage>(ElfImage::load(code));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      kernel.entries[i] = image->symbol(entries[i]);
    }
    kernel.image = std::move(image);
  }
};

}  // namespace

std::unique_ptr<Loader> make_cpu_loader() { return std::make_unique<CpuLoader>(); }

}  // namespace rlk::runtime
