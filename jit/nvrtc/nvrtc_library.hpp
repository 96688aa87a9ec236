// SPDX-License-Identifier: Apache-2.0
// NVRTC's functions once it is open, and one program of it.
#pragma once

#include "jit/nvrtc/nvrtc_finder.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace rlk::jit {

struct NvrtcProgramTag;
using NvrtcProgram = NvrtcProgramTag*;

// X(member, symbol, parameters). The ABI is the same in every NVRTC 12 and 13.
#define RLK_NVRTC_FUNCTIONS(X)                                                                 \
  X(version, nvrtcVersion, (int* major, int* minor))                                           \
  X(create_program, nvrtcCreateProgram,                                                        \
    (NvrtcProgram*, const char* source, const char* name, int num_headers, const char* const*, \
     const char* const*))                                                                      \
  X(destroy_program, nvrtcDestroyProgram, (NvrtcProgram*))                                     \
  X(compile_program, nvrtcCompileProgram, (NvrtcProgram, int num_options, const char* const*)) \
  X(log_size, nvrtcGetProgramLogSize, (NvrtcProgram, std::size_t*))                            \
  X(log, nvrtcGetProgramLog, (NvrtcProgram, char*))                                            \
  X(cubin_size, nvrtcGetCUBINSize, (NvrtcProgram, std::size_t*))                               \
  X(cubin, nvrtcGetCUBIN, (NvrtcProgram, char*))                                               \
  X(ptx_size, nvrtcGetPTXSize, (NvrtcProgram, std::size_t*))                                   \
  X(ptx, nvrtcGetPTX, (NvrtcProgram, char*))

struct NvrtcTable {
  const char* (*error_string)(int code) = nullptr;
  // Since 12.8; else null. The callback is asked during a compile, and ends it by 1.
  int (*set_flow_callback)(NvrtcProgram, int (*callback)(void*, void*), void* payload) = nullptr;
#define RLK_NVRTC_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  RLK_NVRTC_FUNCTIONS(RLK_NVRTC_MEMBER)
#undef RLK_NVRTC_MEMBER
};

// Opens the library and its builtins, and checks that it is what its files said. Both stay open.
// Throws LoadError.
NvrtcTable open_nvrtc(const NvrtcLibrary& library);

struct NvrtcOutput {
  int code = 0;  // NVRTC's, of the compile
  std::string error;
  std::string log;
  std::vector<std::byte> binary;  // cubin, or PTX with its final zero; empty on an error
};

// Compiles once. Throws CompileError only where NVRTC fails outside of the compile. `is_cancelled`
// may be empty; it must go on to say true once it did, and call nothing of NVRTC.
NvrtcOutput run_nvrtc(const NvrtcTable& nvrtc, const std::string& source,
                      const std::vector<std::string>& options, bool ptx,
                      const std::function<bool()>& is_cancelled = {});

}  // namespace rlk::jit
