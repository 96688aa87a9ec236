# SPDX-License-Identifier: Apache-2.0
# The bill of materials: what a built rlk holds of others, in the versions that this build found.
include_guard()

# version(<variable> <header> <macro>...): the macros' numbers, joined by dots.
function(rlk_header_version variable header)
  find_file(path ${header} REQUIRED NO_CACHE)
  set(numbers "")
  foreach(macro IN LISTS ARGN)
    file(STRINGS ${path} line REGEX "^#[ ]*define[ ]+${macro}[ ]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+[^0-9]*$" number "${line}")
    string(REGEX MATCH "[0-9]+" number "${number}")
    if(number STREQUAL "")
      message(FATAL_ERROR "${path}: expected a number as ${macro}")
    endif()
    list(APPEND numbers ${number})
  endforeach()
  list(JOIN numbers "." numbers)
  set(${variable} ${numbers} PARENT_SCOPE)
endfunction()

# rlk_write_sbom(<template> <output>)
function(rlk_write_sbom template output)
  get_property(LLVM_VERSION GLOBAL PROPERTY RLK_LLVM_VERSION)
  rlk_header_version(ZSTD_VERSION zstd.h ZSTD_VERSION_MAJOR ZSTD_VERSION_MINOR ZSTD_VERSION_RELEASE)
  rlk_header_version(ZLIB_VERSION zlib.h ZLIB_VER_MAJOR ZLIB_VER_MINOR ZLIB_VER_REVISION)
  rlk_header_version(XXHASH_VERSION xxhash.h XXH_VERSION_MAJOR XXH_VERSION_MINOR XXH_VERSION_RELEASE)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "from importlib.metadata import version
print(version('nvidia-cuda-nvrtc-cu12'))"
                  OUTPUT_VARIABLE NVRTC_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NVRTC_VERSION STREQUAL "")
    set(NVRTC_VERSION unknown)  # another one than the wheel's, or a layer made elsewhere
  endif()
  foreach(name fmt spdlog nlohmann_json CLI11 pybind11)
    if("${${name}_VERSION}" STREQUAL "")
      message(FATAL_ERROR "${name}: expected its version from its package, found none")
    endif()
  endforeach()
  configure_file(${template} ${output})
endfunction()
