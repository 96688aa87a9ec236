# The tests of rlk-jit call its commands in their own process, and the program itself.
if(TARGET cli_test)
  target_sources(cli_test PRIVATE cli/cli_fixture.cpp)
  target_link_libraries(cli_test PRIVATE rlk_cli)
  target_compile_definitions(cli_test PRIVATE RLK_JIT_PROGRAM="$<TARGET_FILE:rlk-jit>")
  add_dependencies(cli_test rlk-jit)
endif()
