# Finds nvcc, the CUDA libraries and cuDNN, wherever they come from: a toolkit folder, distribution packages or pip wheels.
# Sets GTRAIN_HAVE_CUDA, the imported targets gtrain_cuda::{cudart,cublas,cublasLt} and cuDNN::cudnn, and gtrain_cuda_note.

set(GTRAIN_HAVE_CUDA OFF)
set(gtrain_cuda_note "not wanted")
if(NOT GTRAIN_CUDA)
    return()
endif()

# Ends the search: an error where CUDA was demanded, a note in the summary where it was not.
macro(gtrain_cuda_give_up why)
    if(NOT GTRAIN_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "GTRAIN_CUDA=${GTRAIN_CUDA}, but ${why}")
    endif()
    set(gtrain_cuda_note "off: ${why}")
    return()
endmacro()

if("thread" IN_LIST GTRAIN_SANITIZE AND GTRAIN_CUDA STREQUAL "AUTO")
    set(gtrain_cuda_note "off: its threads are not instrumented")
    return()
endif()

# ---- where things may lie ----------------------------------------------------------------------------------------------

gtrain_python_paths(_python_paths)
set(_wheel_roots "")
foreach(_folder IN LISTS _python_paths)
    # One folder a component (CUDA 12) or one for all (CUDA 13).
    foreach(_component IN ITEMS cu13 cudnn cublas cuda_runtime cuda_nvcc)
        if(IS_DIRECTORY ${_folder}/nvidia/${_component})
            list(APPEND _wheel_roots ${_folder}/nvidia/${_component})
        endif()
    endforeach()
endforeach()

set(_toolkit_roots ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} $ENV{CUDA_PATH} $ENV{CUDA_HOME} /usr/local/cuda)
set(_toolkit_bins ${_toolkit_roots} ${_wheel_roots})
list(TRANSFORM _toolkit_bins APPEND /bin)

if(NOT CMAKE_CUDA_COMPILER)
    if(DEFINED ENV{CUDACXX})
        set(CMAKE_CUDA_COMPILER $ENV{CUDACXX} CACHE FILEPATH "nvcc")
    else()
        find_program(GTRAIN_NVCC NAMES nvcc PATHS ${_toolkit_bins})
        mark_as_advanced(GTRAIN_NVCC)
        if(NOT GTRAIN_NVCC)
            gtrain_cuda_give_up("nvcc was not found. Install the CUDA toolkit, or set CMAKE_CUDA_COMPILER to nvcc.")
        endif()
        set(CMAKE_CUDA_COMPILER ${GTRAIN_NVCC} CACHE FILEPATH "nvcc")
    endif()
endif()

# ---- architectures -----------------------------------------------------------------------------------------------------

if(GTRAIN_CUDA_ARCHITECTURES STREQUAL "native")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
        OUTPUT_VARIABLE _archs OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" _archs "${_archs}")
    if(_failed OR NOT _archs)
        message(FATAL_ERROR "GTRAIN_CUDA_ARCHITECTURES=native, but nvidia-smi names no GPU. Give numbers, for example 90.")
    endif()
    list(TRANSFORM _archs REPLACE "\\." "")
    list(REMOVE_DUPLICATES _archs)
else()
    set(_archs ${GTRAIN_CUDA_ARCHITECTURES})
endif()

execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE _known RESULT_VARIABLE _failed ERROR_QUIET)
if(_failed)
    gtrain_cuda_give_up("${CMAKE_CUDA_COMPILER} --list-gpu-arch does not run.")
endif()
string(REGEX MATCHALL "[0-9]+" _known "${_known}")
set(_usable "")
foreach(_arch IN LISTS _archs)
    string(REGEX MATCH "^[0-9]+" _number "${_arch}")
    if(_number IN_LIST _known)
        list(APPEND _usable ${_arch})
    endif()
endforeach()
if(NOT _usable)
    gtrain_cuda_give_up("nvcc compiles for none of the architectures ${GTRAIN_CUDA_ARCHITECTURES}.")
endif()
# Machine code for each, and PTX of the last one for GPUs to come.
list(POP_BACK _usable _last)
list(TRANSFORM _usable APPEND -real)
set(CMAKE_CUDA_ARCHITECTURES ${_usable} ${_last})

# ---- libraries ---------------------------------------------------------------------------------------------------------

get_filename_component(_nvcc_real ${CMAKE_CUDA_COMPILER} REALPATH)
get_filename_component(_nvcc_root ${_nvcc_real} DIRECTORY)
get_filename_component(_nvcc_root ${_nvcc_root} DIRECTORY)
# Libraries from where nvcc comes from, first of all: versions must not be mixed.
set(gtrain_cuda_roots ${_nvcc_root} ${_toolkit_roots} ${_wheel_roots})
if(_nvcc_root MATCHES "/nvidia/[a-z0-9_]+$")
    set(gtrain_cuda_roots ${_nvcc_root} ${_wheel_roots} ${_toolkit_roots})
endif()

find_path(GTRAIN_CUDA_INCLUDE_DIR NAMES cuda_runtime_api.h HINTS ${gtrain_cuda_roots}
    PATH_SUFFIXES include targets/x86_64-linux/include)
find_path(GTRAIN_CUBLAS_INCLUDE_DIR NAMES cublasLt.h HINTS ${gtrain_cuda_roots}
    PATH_SUFFIXES include targets/x86_64-linux/include)
mark_as_advanced(GTRAIN_CUDA_INCLUDE_DIR GTRAIN_CUBLAS_INCLUDE_DIR)
if(NOT GTRAIN_CUDA_INCLUDE_DIR OR NOT GTRAIN_CUBLAS_INCLUDE_DIR)
    gtrain_cuda_give_up("cuda_runtime_api.h or cublasLt.h was not found. Install the CUDA toolkit with cuBLAS.")
endif()

foreach(_library IN ITEMS cudart cublas cublasLt)
    string(TOUPPER ${_library} _upper)
    # Wheels hold only the versioned name.
    find_library(GTRAIN_${_upper}_LIBRARY NAMES ${_library} lib${_library}.so.13 lib${_library}.so.12
        HINTS ${gtrain_cuda_roots} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
    mark_as_advanced(GTRAIN_${_upper}_LIBRARY)
    if(NOT GTRAIN_${_upper}_LIBRARY)
        gtrain_cuda_give_up("lib${_library}.so was not found. Install the CUDA toolkit, or the pip wheels with it.")
    endif()
    add_library(gtrain_cuda::${_library} UNKNOWN IMPORTED)
    set_target_properties(gtrain_cuda::${_library} PROPERTIES
        IMPORTED_LOCATION ${GTRAIN_${_upper}_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES "${GTRAIN_CUDA_INCLUDE_DIR};${GTRAIN_CUBLAS_INCLUDE_DIR}")
endforeach()

find_package(cuDNN 9 QUIET)
if(NOT cuDNN_FOUND)
    if(cuDNN_VERSION)
        gtrain_cuda_give_up("cuDNN ${cuDNN_VERSION} is too old, 9 or newer is needed.")
    endif()
    gtrain_cuda_give_up("cuDNN 9 was not found. Install cudnn9-cuda-13 (or -12), the pip wheel nvidia-cudnn-cu13 (or -cu12), or set cuDNN_ROOT.")
endif()

# ---- the compiler ------------------------------------------------------------------------------------------------------

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# A wheel's nvcc looks for its libraries in lib64, which wheels do not have.
if(NOT IS_DIRECTORY ${_nvcc_root}/lib64 AND EXISTS ${_nvcc_root}/lib/libcudart_static.a AND NOT DEFINED CMAKE_CUDA_FLAGS)
    set(CMAKE_CUDA_FLAGS "-L${_nvcc_root}/lib" CACHE STRING "Flags for nvcc")
endif()
enable_language(CUDA)
# cudart is linked like any other library, by its path: wheels have no libcudart.so for -lcudart to find.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_DEBUG "-O0 -g")

list(JOIN CMAKE_CUDA_ARCHITECTURES " " _archs)
set(GTRAIN_HAVE_CUDA ON)
set(gtrain_cuda_note "${CMAKE_CUDA_COMPILER_VERSION}, cuDNN ${cuDNN_VERSION}, architectures ${_archs}")
