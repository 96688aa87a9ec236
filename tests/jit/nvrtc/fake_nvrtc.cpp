// SPDX-License-Identifier: Apache-2.0
// The fake libnvrtc.so.12.
#include "tests/jit/nvrtc/fake_nvrtc.hpp"

#include <cstring>

#define RLK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

rlk::test::FakeNvrtc& fake() {
  static rlk::test::FakeNvrtc state;
  return state;
}

template <class Work>
int answer(const char* function, Work work) {
  if (fake().fail_call == function) return fake().fail_code;
  work();
  return 0;
}

}  // namespace

RLK_EXPORT rlk::test::FakeNvrtc* rlk_fake_nvrtc() { return &fake(); }

RLK_EXPORT const char* nvrtcGetErrorString(int code) {
  return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INTERNAL_ERROR";
}
RLK_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = fake().major;
  *minor = fake().minor;
  return 0;
}
RLK_EXPORT int nvrtcCreateProgram(void** program, const char* source, const char* name, int,
                                  const char* const*, const char* const*) {
  return answer("nvrtcCreateProgram", [&] {
    fake().source = source;
    fake().name = name;
    *program = new int;
    ++fake().num_programs;
  });
}
RLK_EXPORT int nvrtcDestroyProgram(void** program) {
  delete static_cast<int*>(*program);
  --fake().num_programs;
  return 0;
}
RLK_EXPORT int nvrtcCompileProgram(void*, int num_options, const char* const* options) {
  fake().options.assign(options, options + num_options);
  ++fake().num_compiles;
  return answer("nvrtcCompileProgram", [] {});
}

#define RLK_FAKE_OUTPUT(Name, member, zero)                                                  \
  RLK_EXPORT int nvrtcGet##Name##Size(void*, std::size_t* bytes) {                           \
    return answer("nvrtcGet" #Name "Size", [&] { *bytes = fake().member.size() + (zero); }); \
  }                                                                                          \
  RLK_EXPORT int nvrtcGet##Name(void*, char* into) {                                         \
    return answer("nvrtcGet" #Name, [&] {                                                    \
      std::memcpy(into, fake().member.c_str(), fake().member.size() + (zero));               \
    });                                                                                      \
  }
RLK_FAKE_OUTPUT(ProgramLog, log, 1)
RLK_FAKE_OUTPUT(CUBIN, cubin, 0)
RLK_FAKE_OUTPUT(PTX, ptx, 1)
