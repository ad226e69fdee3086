# A library inside someone's program has no effect on the process: it neither ends it, nor writes to its terminal, nor changes signals,
# locale, environment, working directory or floating-point mode.
cmake_minimum_required(VERSION 3.25)

set(forbidden
    abort exit _exit _Exit quick_exit atexit on_exit __assert_fail
    printf vprintf puts putchar perror __printf_chk __vprintf_chk stdout stderr stdin psignal
    signal sigaction sigprocmask pthread_kill raise kill alarm setitimer
    setlocale setenv putenv unsetenv clearenv chdir fchdir umask
    fesetround fesetenv feenableexcept fesetmode
    system popen srand srandom rand random strtok)

execute_process(COMMAND ${nm} -D --undefined-only ${library} OUTPUT_VARIABLE table RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
    message(FATAL_ERROR "nm failed: ${errors}")
endif()
string(REGEX MATCHALL "[A-Za-z_][A-Za-z0-9_]*(@+[A-Za-z0-9_.]+)?\n" imports "${table}")
list(TRANSFORM imports REPLACE "(@.*)?\n$" "")
list(LENGTH imports count)
if(count LESS 5)
    message(FATAL_ERROR "nm lists only ${count} imports: ${table}")
endif()
foreach(name IN LISTS forbidden)
    if(name IN_LIST imports)
        message(SEND_ERROR "${library} calls ${name}")
    endif()
endforeach()
