// SPDX-License-Identifier: Apache-2.0
// dlopen and dlsym, with errors as LoadError.
#include "runtime/shared_library.hpp"

#include "runtime/error.hpp"

#include <dlfcn.h>

namespace rlk::runtime {

SharedLibrary::~SharedLibrary() {
  if (library_ != nullptr) dlclose(library_);
}

SharedLibrary SharedLibrary::open(const std::string& name) {
  // RTLD_LOCAL: no other library may be bound to its symbols.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw LoadError("{}", why != nullptr ? why : name + ": cannot be opened");
  }
  return {library, name};
}

void* SharedLibrary::find(const char* symbol) const { return dlsym(library_, symbol); }

void* SharedLibrary::need(const char* symbol) const {
  void* address = find(symbol);
  if (address == nullptr) throw LoadError("{}: expected a function {}, found none", name_, symbol);
  return address;
}

}  // namespace rlk::runtime
