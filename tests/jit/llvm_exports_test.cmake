# SPDX-License-Identifier: Apache-2.0
# cmake -P: librlk_llvm.so exports its C functions alone, so that no other LLVM can clash.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" names "${symbols}")
list(SORT names)
string(REPLACE "\n" "" names "${names}")
if(NOT names STREQUAL "rlk_llvm_compile;rlk_llvm_free;rlk_llvm_identity")
  message(FATAL_ERROR "unexpected exports: ${names}")
endif()
