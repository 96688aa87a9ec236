# SPDX-License-Identifier: Apache-2.0
# The interpreters that the Python module is built for: Python_EXECUTABLE and RLK_PYTHONS.

# rlk_python_facts(<variable> <interpreter>): its folder of headers and the suffix of its modules, or
# nothing where it is no CPython of 3.11 or later with headers.
function(rlk_python_facts variable interpreter)
  execute_process(COMMAND "${interpreter}" -I -c "import os, sys, sysconfig
include = sysconfig.get_path('include')
assert sys.implementation.name == 'cpython' and sys.version_info >= (3, 11)
assert os.path.exists(os.path.join(include, 'Python.h'))
print(include, sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
                  OUTPUT_VARIABLE facts OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(NOT status EQUAL 0)
    set(facts "")
  endif()
  set(${variable} "${facts}" PARENT_SCOPE)
endfunction()

# RLK_PYTHONS is looked at before anything is made for it.
rlk_python_facts(facts "${Python_EXECUTABLE}")
list(GET facts 1 suffixes)
foreach(interpreter IN LISTS RLK_PYTHONS)
  set(expected "expected interpreters of CPython 3.11 or later with headers")
  rlk_python_facts(facts "${interpreter}")
  list(LENGTH facts number)
  if(NOT number EQUAL 2)
    message(FATAL_ERROR "RLK_PYTHONS: ${expected}, got '${interpreter}'")
  endif()
  list(GET facts 1 suffix)
  if(suffix IN_LIST suffixes)
    message(FATAL_ERROR "RLK_PYTHONS: ${expected}, one for each version and none for that of "
                        "${Python_EXECUTABLE}, got a second with ${suffix}: '${interpreter}'")
  endif()
  list(APPEND suffixes ${suffix})
endforeach()
