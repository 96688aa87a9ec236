# SPDX-License-Identifier: Apache-2.0
# Run with cmake -P at build time: writes OUTPUT, the CUDA template SOURCE with every header that it
# includes (relative to FOLDER) put in its place, once: NVRTC gets one text and needs no include path.
cmake_minimum_required(VERSION 3.25)  # a script has no policies of its own: IN_LIST is one
file(READ ${FOLDER}/${SOURCE} text)
set(seen "")
while(text MATCHES "#include \"([^\"\n]+)\"\n")
  set(line "${CMAKE_MATCH_0}")
  set(header "${CMAKE_MATCH_1}")
  set(body "")
  if(NOT header IN_LIST seen)
    list(APPEND seen ${header})
    file(READ ${FOLDER}/${header} body)
    string(REPLACE "#pragma once\n" "" body "${body}")
  endif()
  # The first one found is the first in the text, so headers keep the preprocessor's order.
  string(FIND "${text}" "${line}" at)
  string(LENGTH "${line}" length)
  string(SUBSTRING "${text}" 0 ${at} before)
  math(EXPR at "${at} + ${length}")
  string(SUBSTRING "${text}" ${at} -1 after)
  set(text "${before}${body}${after}")
endwhile()
file(WRITE ${OUTPUT} "${text}")
