// SPDX-License-Identifier: Apache-2.0
// Loads a relocatable ELF object of a CPU kernel into memory, ready to be called.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rlk::runtime {

// A kernel's object is small and self-contained: code, read-only data, PC-relative relocations, no
// undefined symbol, no writable data. Anything else is refused. Pages are written first and made
// executable afterwards, never both at once.
class ElfImage {
 public:
  // Throws LoadError on bytes that are damaged, of another machine or not self-contained, Refused
  // where the system allows no executable page. Keeps nothing of object.
  static ElfImage load(std::span<const std::byte> object);

  ElfImage(ElfImage&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        symbols_(std::move(other.symbols_)) {}
  ElfImage& operator=(ElfImage&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(symbols_, other.symbols_);
    return *this;
  }
  ~ElfImage();

  // Address of a function. Throws LoadError if there is none of that name.
  void* symbol(std::string_view name) const;

  std::size_t mapped_bytes() const { return bytes_; }

 private:
  struct Symbol {
    std::string name;
    void* address;
  };

  ElfImage(void* base, std::size_t bytes) : base_(base), bytes_(bytes) {}

  void* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<Symbol> symbols_;
};

}  // namespace rlk::runtime
