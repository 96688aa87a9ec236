# SPDX-License-Identifier: Apache-2.0
# The NVRTCs in the wheels of the Python that builds: RLK_NVRTC_12 makes the built-in layer and must
# be 12.9, whose cubins every driver from CUDA 12 on takes; RLK_NVRTC_13 is for tests alone.
include_guard()
find_package(Python 3.11 COMPONENTS Interpreter)

function(rlk_find_nvrtc variable wheel version)
  if(${variable})
    return()  # given by -D
  endif()
  set(path "")
  if(Python_Interpreter_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/find_nvrtc.py ${wheel}
                            ${version}
                    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()
rlk_find_nvrtc(RLK_NVRTC_12 nvidia-cuda-nvrtc-cu12 12.9)
rlk_find_nvrtc(RLK_NVRTC_13 nvidia-cuda-nvrtc 13.0)
