// SPDX-License-Identifier: Apache-2.0
// A library opened with dlopen: libcuda and NVRTC are found at first use, never linked.
#pragma once

#include <string>
#include <utility>

namespace rlk::runtime {

class SharedLibrary {
 public:
  SharedLibrary() = default;
  SharedLibrary(SharedLibrary&& other) noexcept
      : library_(std::exchange(other.library_, nullptr)), name_(std::move(other.name_)) {}
  SharedLibrary& operator=(SharedLibrary&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(name_, other.name_);
    return *this;
  }
  ~SharedLibrary();

  // A path, or a name for the loader to search. Throws LoadError with the loader's own words.
  static SharedLibrary open(const std::string& name);

  // nullptr if it has no such symbol.
  void* find(const char* symbol) const;

  template <class Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(need(symbol));
  }

  // It stays open until the process ends: such libraries keep threads, or statics that do not
  // survive a second opening.
  void keep_open() { library_ = nullptr; }

 private:
  SharedLibrary(void* library, std::string name) : library_(library), name_(std::move(name)) {}

  void* need(const char* symbol) const;  // throws LoadError if absent

  void* library_ = nullptr;
  std::string name_;
};

}  // namespace rlk::runtime
