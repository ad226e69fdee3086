cmake_minimum_required(VERSION 3.25)

function(step)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
    endif()
endfunction()

file(REMOVE_RECURSE ${work})
step(${CMAKE_COMMAND} -S ${consumer} -B ${work} -D CMAKE_PREFIX_PATH=${prefix} -D TARGET=${target} -D PROGRAM=${program}
    -D CMAKE_C_COMPILER=${c} -D CMAKE_CXX_COMPILER=${cxx} -D CMAKE_CXX_FLAGS=${cxx_flags} -D CMAKE_C_FLAGS=${cxx_flags}
    -D CMAKE_BUILD_TYPE=Release)
step(${CMAKE_COMMAND} --build ${work})
step(${work}/consumer)
