// SPDX-License-Identifier: Apache-2.0
// A libnvrtc.so.12 that compiles nothing: records what it is given and answers as told.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace rlk::test {

struct FakeNvrtc {
  int major = 12, minor = 99;  // no real one: its builtins would answer for the real ones
  std::string fail_call;       // this function gives fail_code
  int fail_code = 6;
  std::string log, cubin, ptx;

  std::string source, name;
  std::vector<std::string> options;
  int num_compiles = 0;
  int num_programs = 0;  // at this moment
};

inline FakeNvrtc& fake_nvrtc() {
  void* opened = dlopen(RLK_FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL);
  void* get = opened != nullptr ? dlsym(opened, "rlk_fake_nvrtc") : nullptr;
  if (get == nullptr) throw std::runtime_error("no fake NVRTC");
  return *reinterpret_cast<FakeNvrtc* (*)()>(get)();
}

}  // namespace rlk::test
