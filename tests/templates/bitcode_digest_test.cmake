# SPDX-License-Identifier: Apache-2.0
# cmake -P: the bitcode of a template must not tell in which folder the tree lay.
set(RLK_WITH_LLVM ON)
include(${SOURCE_DIR}/cmake/CpuBitcode.cmake)
file(REMOVE_RECURSE ${WORK_DIR})
set(digests "")
foreach(folder "one" "another place")
  file(COPY ${SOURCE_DIR}/templates DESTINATION "${WORK_DIR}/${folder}")
  execute_process(
    COMMAND ${RLK_CLANG} ${RLK_BITCODE_FLAGS} -march=x86-64-v3 ${RLK_LEVEL_x86-64-v3} -I.
            templates/linear_logp/kernel_cpu.cpp -o "${WORK_DIR}/${folder}/kernel.bc"
    WORKING_DIRECTORY "${WORK_DIR}/${folder}" COMMAND_ERROR_IS_FATAL ANY)
  file(SHA256 "${WORK_DIR}/${folder}/kernel.bc" digest)
  list(APPEND digests ${digest})
endforeach()
file(REMOVE_RECURSE ${WORK_DIR})
list(REMOVE_DUPLICATES digests)
list(LENGTH digests count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "the digest follows the folder: ${digests}")
endif()
