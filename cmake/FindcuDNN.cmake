# Finds cuDNN. Hints: cuDNN_ROOT, and the variable gtrain_cuda_roots (folders that hold include/ and lib/ or lib64/).
#
# Sets cuDNN_FOUND, cuDNN_VERSION, cuDNN_INCLUDE_DIR, cuDNN_LIBRARY and the imported target cuDNN::cudnn.

find_path(cuDNN_INCLUDE_DIR NAMES cudnn_version.h HINTS ${gtrain_cuda_roots}
    PATH_SUFFIXES include targets/x86_64-linux/include)
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${gtrain_cuda_roots}
    PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)

set(cuDNN_VERSION "")
if(cuDNN_INCLUDE_DIR)
    foreach(_part IN ITEMS MAJOR MINOR PATCHLEVEL)
        file(STRINGS ${cuDNN_INCLUDE_DIR}/cudnn_version.h _line REGEX "^#define[ \t]+CUDNN_${_part}[ \t]+[0-9]+")
        string(REGEX MATCH "[0-9]+$" _number "${_line}")
        list(APPEND cuDNN_VERSION ${_number})
    endforeach()
    list(JOIN cuDNN_VERSION "." cuDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)

if(cuDNN_FOUND AND NOT TARGET cuDNN::cudnn)
    add_library(cuDNN::cudnn UNKNOWN IMPORTED)
    set_target_properties(cuDNN::cudnn PROPERTIES
        IMPORTED_LOCATION ${cuDNN_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${cuDNN_INCLUDE_DIR})
endif()
