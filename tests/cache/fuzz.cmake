# The fuzz target of the entry format: built on demand, where clang and its fuzzer are.
include(${CMAKE_SOURCE_DIR}/cmake/CpuBitcode.cmake)
if(RLK_CLANG)
  set(sources tests/cache/fuzz_entry.cpp cache/entry.cpp cache/entry_name.cpp cache/key.cpp)
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/)
  add_custom_command(
    OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/fuzz_entry
    COMMAND ${RLK_CLANG} --driver-mode=g++ -std=c++20 -O1 -g -fno-omit-frame-pointer
            -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DXXH_INLINE_ALL
            -DFMT_HEADER_ONLY -I${CMAKE_SOURCE_DIR} ${sources} -o fuzz_entry
    DEPENDS ${sources} ${CMAKE_SOURCE_DIR}/cache/entry.hpp ${CMAKE_SOURCE_DIR}/cache/bytes.hpp
    VERBATIM)
  add_custom_target(fuzz DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/fuzz_entry)
endif()
