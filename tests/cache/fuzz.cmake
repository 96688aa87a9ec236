# The fuzz targets of entries and packs: built on demand, where clang and its fuzzer are.
include(${CMAKE_SOURCE_DIR}/cmake/CpuBitcode.cmake)
if(RLK_CLANG)
  set(programs "")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cache/*.hpp)
  foreach(name fuzz_entry fuzz_pack)
    set(sources tests/cache/${name}.cpp cache/entry.cpp cache/entry_name.cpp cache/key.cpp)
    if(name STREQUAL fuzz_pack)
      list(APPEND sources cache/files/file_system.cpp cache/pack.cpp cache/files/sha256.cpp)
    endif()
    list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/)
    add_custom_command(
      OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}
      COMMAND ${RLK_CLANG} --driver-mode=g++ -std=c++20 -O1 -g -fno-omit-frame-pointer
              -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DXXH_INLINE_ALL
              -DFMT_HEADER_ONLY -I${CMAKE_SOURCE_DIR} ${sources} -o ${name}
      DEPENDS ${sources} ${headers}
      VERBATIM)
    list(APPEND programs ${CMAKE_CURRENT_BINARY_DIR}/${name})
  endforeach()
  add_custom_target(fuzz DEPENDS ${programs})
endif()
