# The tests of the CPU kernels compile them, so they need LLVM and the bitcode.
include(${CMAKE_SOURCE_DIR}/cmake/CpuBitcode.cmake)
if(RLK_WITH_LLVM AND RLK_CLANG)
  target_sources(templates_linear_logp_test PRIVATE templates/linear_logp/kernel_fixture.cpp)
  add_dependencies(templates_linear_logp_test rlk_llvm)
  target_compile_definitions(templates_linear_logp_test PRIVATE
    RLK_LLVM_FOLDER="$<TARGET_FILE_DIR:rlk_llvm>")
else()
  file(GLOB kernel_tests templates/linear_logp/kernel_cpu_*_test.cpp)
  set_source_files_properties(${kernel_tests} PROPERTIES HEADER_FILE_ONLY ON)
endif()
