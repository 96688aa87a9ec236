# Stand-ins for libcuda and NVRTC, opened with dlopen as the real ones are.
function(rlk_fake_library name folder output source)
  add_library(${name} SHARED ${source})
  target_link_libraries(${name} PRIVATE rlk_options)
  set_target_properties(${name} PROPERTIES
    PREFIX "" SUFFIX "" OUTPUT_NAME ${output} NO_SONAME ON  # else they answer for the real ones
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${folder})
endfunction()

rlk_fake_library(fake_cuda fake_cuda libcuda.so.1 support/fake_cuda.cpp)
rlk_fake_library(fake_cuda_11 fake_cuda_11 libcuda.so.1 support/fake_cuda.cpp)
target_compile_definitions(fake_cuda_11 PRIVATE RLK_FAKE_OLDER_THAN_12)
foreach(library fake_cuda fake_cuda_11)
  target_compile_definitions(${library} PRIVATE RLK_FAKE_CUDA="")
endforeach()
foreach(test runtime_cuda_test jit_test templates_test templates_linear_logp_test
        templates_logp_test templates_ppo_loss_test templates_ratio_kl_test templates_grpo_loss_test
        templates_det_gemm_test cli_test)
  add_dependencies(${test} fake_cuda fake_cuda_11)
  target_compile_definitions(${test} PRIVATE
    RLK_FAKE_CUDA="$<TARGET_FILE:fake_cuda>" RLK_FAKE_CUDA_11="$<TARGET_FILE:fake_cuda_11>")
endforeach()
target_sources(templates_linear_logp_test PRIVATE templates/linear_logp/launch_cuda_fixture.cpp)

rlk_fake_library(fake_nvrtc fake_nvrtc libnvrtc.so.12 jit/nvrtc/fake_nvrtc.cpp)
target_compile_definitions(fake_nvrtc PRIVATE RLK_FAKE_NVRTC="")
target_link_options(fake_nvrtc PRIVATE
  -Wl,--build-id=0x00112233445566778899aabbccddeeff00112233)
rlk_fake_library(fake_builtins fake_nvrtc libnvrtc-builtins.so.12.99 jit/nvrtc/fake_builtins.cpp)
foreach(test jit_nvrtc_test cli_test)
  add_dependencies(${test} fake_nvrtc fake_builtins)
  target_compile_definitions(${test} PRIVATE RLK_FAKE_NVRTC="$<TARGET_FILE:fake_nvrtc>")
endforeach()

add_test(NAME nvrtc_leaves_the_driver_alone
  COMMAND jit_nvrtc_test --gtest_filter=NvrtcTargetsTest.ACompileLeavesTheDriverAlone)
set_tests_properties(nvrtc_leaves_the_driver_alone PROPERTIES
  ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:fake_cuda>;${RLK_TEST_ENVIRONMENT}"
  SKIP_REGULAR_EXPRESSION "RLK_TEST_NVRTC names no NVRTC")
add_dependencies(jit_nvrtc_test fake_cuda)
