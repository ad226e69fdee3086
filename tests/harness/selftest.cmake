# A harness that lets failures through would make every test worthless: it is checked on cases that fail on purpose.
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${executable} --device cpu RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)

function(expect_line pattern)
    if(NOT output MATCHES "(^|\n)${pattern}")
        message(SEND_ERROR "the output lacks: ${pattern}\n${output}${errors}")
    endif()
endfunction()

if(NOT result EQUAL 1)
    message(SEND_ERROR "the exit status is ${result}, not 1")
endif()
foreach(case IN ITEMS passes cleans_up.cpu)
    expect_line("ok    ${case} ")
endforeach()
foreach(case IN ITEMS fails_on_check fails_on_int fails_on_string fails_on_near fails_on_nan fails_on_status fails_on_values
        fails_on_missing_text ends_in_a_helper goes_on_after_expect leaks.cpu)
    expect_line("FAIL  ${case} ")
endforeach()
expect_line("skip  skips +a reason")
expect_line("2 passed, 11 failed, 1 skipped")
if(errors MATCHES "went on after a failed CHECK" OR NOT errors MATCHES "went on" OR NOT errors MATCHES "leak: [0-9]+ bytes")
    message(SEND_ERROR "wrong messages:\n${errors}")
endif()

# As ctest runs them: one case, and the skip code.
foreach(pair IN ITEMS passes=0 fails_on_int=1 skips=77 no_such_case=2)
    string(REGEX MATCH "^(.+)=(.+)$" matched ${pair})
    execute_process(COMMAND ${executable} ${CMAKE_MATCH_1} RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(NOT result EQUAL CMAKE_MATCH_2)
        message(SEND_ERROR "${pair}: the exit status is ${result}")
    endif()
endforeach()

execute_process(COMMAND ${executable} --without fails_* --without leaks --without goes_on_after_expect --without ends_in_a_helper --device cpu
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_QUIET)
if(NOT result EQUAL 0 OR NOT output MATCHES "2 passed, 0 failed, 1 skipped")
    message(SEND_ERROR "--without left out the wrong cases (${result}):\n${output}")
endif()
