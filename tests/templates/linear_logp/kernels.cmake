# The test of a launch on the CPU compiles the kernels, so it needs LLVM and the bitcode.
include(${CMAKE_SOURCE_DIR}/cmake/CpuBitcode.cmake)
if(RLK_WITH_LLVM AND RLK_CLANG)
  add_dependencies(templates_linear_logp_test rlk_llvm)
  target_compile_definitions(templates_linear_logp_test PRIVATE
    RLK_LLVM_FOLDER="$<TARGET_FILE_DIR:rlk_llvm>")
else()
  set_source_files_properties(templates/linear_logp/launch_cpu_test.cpp
                              PROPERTIES HEADER_FILE_ONLY ON)
endif()
