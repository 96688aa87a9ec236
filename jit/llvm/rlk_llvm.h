/* SPDX-License-Identifier: Apache-2.0 */
/* All that librlk_llvm.so exports. Plain C: no exception, no C++ type and no LLVM type crosses it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* name; /* the global variable; a declaration in the bitcode */
  int64_t value;    /* must fit the variable's integer type */
} rlk_llvm_constant;

typedef enum {
  rlk_llvm_object = 0,  /* one relocatable ELF object */
  rlk_llvm_assembly = 1 /* the same code as text */
} rlk_llvm_output;

typedef struct {
  const void* bitcode;
  size_t bitcode_bytes;
  const char* level; /* x86-64-v2, x86-64-v3, x86-64-v4 */
  const rlk_llvm_constant* constants;
  size_t num_constants;
  const char* const* entries; /* functions to keep */
  size_t num_entries;
  const char* const* options; /* "allow-missed-transforms": see compile.hpp */
  size_t num_options;
  rlk_llvm_output output;
} rlk_llvm_request;

typedef struct {
  void* code; /* null on failure */
  size_t code_bytes;
  char* log; /* what the compiler said, or null; the reason on failure */
  int64_t machine_code_bytes;
  int64_t stack_bytes; /* largest frame of a function */
  int32_t num_spills;  /* most spills in a function */
} rlk_llvm_result;

/* Fills *result, which rlk_llvm_free() must get back. Returns 0, or 1 on failure. Any thread. */
int rlk_llvm_compile(const rlk_llvm_request* request, rlk_llvm_result* result);
void rlk_llvm_free(rlk_llvm_result* result);

/* LLVM's version and a digest of the code around it: "llvm-19.1.7-5c1f09ab". */
const char* rlk_llvm_identity(void);

#ifdef __cplusplus
}
#endif
