# Language level, warnings, optimisation and sanitizers, as the interface target gtrain_flags, which only our own targets use.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g")

# Libraries side by side, so that the module is found next to libgtrain.so in the build tree as after installation.
if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
    set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
    set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
endif()

set(gtrain_warnings -Wall -Wextra -Wshadow -Wpointer-arith)
set(gtrain_c_warnings -Wstrict-prototypes -Wmissing-prototypes)

add_library(gtrain_flags INTERFACE)
target_compile_definitions(gtrain_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
target_compile_options(gtrain_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:${gtrain_warnings};${gtrain_c_warnings}>
    $<$<COMPILE_LANGUAGE:CXX>:${gtrain_warnings}>
    # errno and floating-point traps are never used; saying so lets sqrtf and comparisons become vector code. Results do not change.
    $<$<COMPILE_LANGUAGE:C>:-fno-math-errno;-fno-trapping-math>)
if(GTRAIN_WERROR)
    target_compile_options(gtrain_flags INTERFACE
        $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
        $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

if(GTRAIN_SANITIZE)
    list(JOIN GTRAIN_SANITIZE "," sanitizers)
    set(sanitize_flags -fsanitize=${sanitizers} -fno-omit-frame-pointer -g)
    if("undefined" IN_LIST GTRAIN_SANITIZE)
        list(APPEND sanitize_flags -fno-sanitize-recover=undefined)
    endif()
    # Directory scope: examples and consumers in this build need the same runtime.
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${sanitize_flags}>")
    add_link_options(-fsanitize=${sanitizers})
endif()
