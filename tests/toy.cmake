# The inputs of the compiler's and the loader's tests: a toy template and toy objects.
include(${CMAKE_SOURCE_DIR}/cmake/CpuBitcode.cmake)

# Objects of the plain compiler, without what a sanitizer, CET or unwinding would add.
set(objects "")
foreach(variant good undefined writable zeroed)
  string(TOUPPER ${variant} define)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/toy_objects/${variant}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/toy_objects
    COMMAND ${CMAKE_CXX_COMPILER} -c -O1 -fPIC -fcf-protection=none -fno-asynchronous-unwind-tables
            -fno-exceptions -fvisibility=hidden -DRLK_TOY_${define}
            ${CMAKE_CURRENT_SOURCE_DIR}/runtime/toy_object.cpp -o ${object}
    DEPENDS runtime/toy_object.cpp
    VERBATIM)
  list(APPEND objects ${object})
endforeach()
add_custom_target(toy_objects DEPENDS ${objects})
add_dependencies(runtime_test toy_objects)
target_compile_definitions(runtime_test PRIVATE
  RLK_TOY_OBJECTS="${CMAKE_CURRENT_BINARY_DIR}/toy_objects")

if(RLK_CLANG)
  add_test(NAME bitcode_digest
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR}
            -DWORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/bitcode_digest
            -P ${CMAKE_CURRENT_SOURCE_DIR}/templates/bitcode_digest_test.cmake)
endif()

if(RLK_WITH_LLVM AND RLK_CLANG)
  set(bitcodes "")
  foreach(level IN LISTS RLK_CPU_LEVELS)
    set(bitcode ${CMAKE_CURRENT_BINARY_DIR}/toy_bitcode/${level}.bc)
    rlk_cpu_bitcode(tests/jit/toy_kernel_cpu.cpp ${level} ${bitcode})
    list(APPEND bitcodes ${bitcode})
  endforeach()
  add_custom_target(toy_bitcode DEPENDS ${bitcodes})
  add_dependencies(jit_test toy_bitcode rlk_llvm)
  target_compile_definitions(jit_test PRIVATE
    RLK_TOY_BITCODE="${CMAKE_CURRENT_BINARY_DIR}/toy_bitcode"
    RLK_LLVM_FOLDER="$<TARGET_FILE_DIR:rlk_llvm>")
  add_test(NAME llvm_exports
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:rlk_llvm>
            -P ${CMAKE_CURRENT_SOURCE_DIR}/jit/llvm_exports_test.cmake)
else()
  # There is no compiler to test.
  set_source_files_properties(jit/llvm_compiler_test.cpp PROPERTIES HEADER_FILE_ONLY ON)
endif()
