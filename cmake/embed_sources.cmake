# SPDX-License-Identifier: Apache-2.0
# Run with cmake -P at build time: writes OUTPUT, a C++ file that holds the bytes and the digest of
# each of SOURCES (a list of op=family=file) and the list of OPS.
string(REPLACE "|" ";" SOURCES "${SOURCES}")
string(REPLACE "|" ";" OPS "${OPS}")

set(count 0)
set(bytes "")
set(rows "")
foreach(source IN LISTS SOURCES)
  if(NOT source MATCHES "^([^=]+)=([^=]+)=(.+)$")
    message(FATAL_ERROR "expected op=family=file, got ${source}")
  endif()
  set(op ${CMAKE_MATCH_1})
  set(family ${CMAKE_MATCH_2})
  set(file ${CMAKE_MATCH_3})
  file(SIZE ${file} size)
  file(SHA256 ${file} digest)
  # The assembler takes the bytes as they are; a C array of them would compile for seconds.
  string(APPEND bytes "asm(R\"(.pushsection .rodata.rlk_source, \"a\"
    .balign 16
    .globl rlk_source_${count}
    .hidden rlk_source_${count}
    .type rlk_source_${count}, @object
    .size rlk_source_${count}, ${size}
  rlk_source_${count}:
    .incbin \"${file}\"
    .popsection)\");
extern \"C\" __attribute__((visibility(\"hidden\"))) const std::byte rlk_source_${count}[${size}];
")
  string(APPEND rows "    {\"${op}\", \"${family}\", std::span(rlk_source_${count}),
     \"${digest}\"},
")
  math(EXPR count "${count} + 1")
endforeach()

list(LENGTH OPS num_ops)
set(declarations "")
set(pointers "")
foreach(op IN LISTS OPS)
  string(APPEND declarations "extern const jit::Op ${op}_op;\n")
  string(APPEND pointers "&${op}_op, ")
endforeach()

file(WRITE ${OUTPUT} "// Generated: the templates and the ops.
#include <array>
#include <cstddef>

#include \"templates/registry.hpp\"

${bytes}
namespace rlk::templates {
${declarations}
namespace {
constinit const std::array<KernelSource, ${count}> sources{{
${rows}}};
constinit const std::array<const jit::Op*, ${num_ops}> all_ops{${pointers}};
}  // namespace

std::span<const KernelSource> kernel_sources() { return sources; }

jit::Ops ops() { return all_ops; }
}  // namespace rlk::templates
")
