cmake_minimum_required(VERSION 3.25)
# Run after a test executable was linked: writes a ctest file with one test for each case that `executable --list` names.
# Takes executable, output, labels (comma separated, added to each case's own) and timeout.

execute_process(COMMAND ${executable} --list OUTPUT_VARIABLE listing RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
    message(FATAL_ERROR "${executable} --list failed (${result}):\n${errors}")
endif()

string(REPLACE ";" "," listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
string(REPLACE "," ";" extra_labels "${labels}")

# As many cases run at once as there are cores, each with as many threads: those that wait must not spin.
set(script "")
foreach(line IN LISTS lines)
    if(NOT line MATCHES "^([^\t]+)\t(.+)$")
        continue()
    endif()
    set(case ${CMAKE_MATCH_1})
    string(REPLACE "," ";" case_labels "${CMAKE_MATCH_2}")
    list(GET case_labels 0 area)
    list(APPEND case_labels ${extra_labels})
    list(REMOVE_DUPLICATES case_labels)
    set(limit ${timeout})
    if("slow" IN_LIST case_labels)
        math(EXPR limit "${limit} * 5")
    endif()
    string(APPEND script
        "add_test([[${area}.${case}]] [[${executable}]] [[${case}]])\n"
        "set_tests_properties([[${area}.${case}]] PROPERTIES LABELS [[${case_labels}]] TIMEOUT ${limit} SKIP_RETURN_CODE 77 ENVIRONMENT OMP_WAIT_POLICY=passive)\n")
endforeach()
file(WRITE ${output} "${script}")
