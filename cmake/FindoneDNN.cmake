# Finds oneDNN (libdnnl), from the system, oneDNN_ROOT or a pip wheel. Its own CMake package is not used: Debian's asks for OpenCL
# headers that only its GPU interface needs.
#
# Sets oneDNN_FOUND, oneDNN_VERSION, oneDNN_INCLUDE_DIR, oneDNN_LIBRARY, oneDNN_THREADING (OMP, TBB, SEQ, THREADPOOL) and the
# imported target oneDNN::dnnl.

gtrain_python_paths(_hints)

find_path(oneDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h HINTS ${_hints} PATH_SUFFIXES include)
find_library(oneDNN_LIBRARY NAMES dnnl libdnnl.so.3 libdnnl.so.2 HINTS ${_hints} PATH_SUFFIXES lib lib64)
mark_as_advanced(oneDNN_INCLUDE_DIR oneDNN_LIBRARY)

# The version lies in a generated header whose name changed between releases.
set(oneDNN_VERSION "")
if(oneDNN_INCLUDE_DIR)
    foreach(_part IN ITEMS MAJOR MINOR PATCH)
        set(_number "")
        foreach(_header IN ITEMS dnnl_version.h dnnl_config.h)
            if(NOT _number AND EXISTS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/${_header})
                file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/${_header} _line
                    REGEX "^#define[ \t]+DNNL_VERSION_${_part}[ \t]+[0-9]+")
                string(REGEX MATCH "[0-9]+$" _number "${_line}")
            endif()
        endforeach()
        list(APPEND oneDNN_VERSION ${_number})
    endforeach()
    list(JOIN oneDNN_VERSION "." oneDNN_VERSION)
    set(oneDNN_THREADING "")
    file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h _line
        REGEX "^#define[ \t]+DNNL_CPU_THREADING_RUNTIME[ \t]+DNNL_RUNTIME_")
    if(_line MATCHES "DNNL_RUNTIME_([A-Z]+)")
        set(oneDNN_THREADING ${CMAKE_MATCH_1})
    endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR VERSION_VAR oneDNN_VERSION)

if(oneDNN_FOUND AND NOT TARGET oneDNN::dnnl)
    add_library(oneDNN::dnnl UNKNOWN IMPORTED)
    set_target_properties(oneDNN::dnnl PROPERTIES
        IMPORTED_LOCATION ${oneDNN_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
