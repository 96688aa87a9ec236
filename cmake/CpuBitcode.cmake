# SPDX-License-Identifier: Apache-2.0
# Compiles a CPU kernel template to one bitcode file a level, and embeds such files into C++.
include_guard()

set(RLK_LLVM_MAJOR 19)
# Bitcode is read by the LLVM of the same major or newer, so clang's must be the same. A build
# without LLVM has no use for it, and is then the same on a machine with clang and without.
if(RLK_WITH_LLVM)
  find_program(RLK_CLANG NAMES clang++-${RLK_LLVM_MAJOR} clang-${RLK_LLVM_MAJOR}
               PATHS /usr/lib/llvm-${RLK_LLVM_MAJOR}/bin NO_CACHE)
endif()

set(RLK_CPU_LEVELS x86-64-v2 x86-64-v3 x86-64-v4)

# Optimization is left to the JIT, which knows the constants. Freestanding: the code may call
# nothing. No contraction: every fma is written out, so that a level's bits are its own.
set(RLK_BITCODE_FLAGS
    -x c++ -std=c++20 -O3 -Xclang -disable-llvm-passes -emit-llvm -c -g0 -fPIC -ffreestanding
    -nostdlibinc -fno-exceptions -fno-rtti -fno-stack-protector -fno-unwind-tables
    -fno-asynchronous-unwind-tables -fno-threadsafe-statics -fno-ident -fno-math-errno
    -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-psabi)

# rlk_cpu_bitcode(<source> <level> <output> [DEPENDS file...]): <source> relative to the top of the
# tree, and compiled under that path, so that the bytes do not tell where the tree lies.
# The template sees RLK_VL, the vector length in floats, and RLK_FMA, whether fma is an instruction.
set(RLK_LEVEL_x86-64-v2 -DRLK_VL=4 -DRLK_FMA=0)
set(RLK_LEVEL_x86-64-v3 -DRLK_VL=8 -DRLK_FMA=1)
set(RLK_LEVEL_x86-64-v4 -DRLK_VL=16 -DRLK_FMA=1)
function(rlk_cpu_bitcode source level output)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  cmake_path(GET output PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${RLK_CLANG} ${RLK_BITCODE_FLAGS} -march=${level} ${RLK_LEVEL_${level}} -I. -Itemplates ${source}
            -o ${output}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    DEPENDS ${CMAKE_SOURCE_DIR}/${source} ${arg_DEPENDS}
    COMMENT "Compiling ${source} to bitcode for ${level}"
    VERBATIM)
endfunction()
