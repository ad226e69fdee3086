# The library targets, and the functions by which each source folder adds its files:
#
#     gtrain_sources(a.c b.c)               part of libgtrain.so and libgtrain.a
#     gtrain_loader_sources(loader.c)       the same, but compiled for each: only in libgtrain.a may GTRAIN_STATIC_CUDA be defined
#     gtrain_cuda_sources(device.c k_x.cu)  part of libgtrain_cuda.so (and of libgtrain.a with GTRAIN_STATIC_CUDA)
#     gtrain_cuda_module_sources(host.c)    part of libgtrain_cuda.so only

set(gtrain_public_includes
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# Compiled once, position independent, for both libraries.
add_library(gtrain_objects OBJECT)
set_target_properties(gtrain_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(gtrain_objects PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/gtrain_embedded) # see EmbedFile.cmake
target_link_libraries(gtrain_objects PRIVATE gtrain_flags Threads::Threads)

# What libgtrain needs at link time: the path here, the plain name for whoever links an installed libgtrain.a.
set(gtrain_private_libraries m ${CMAKE_DL_LIBS} Threads::Threads)
set(gtrain_pc_private "-lm -lpthread -ldl")
macro(gtrain_use_library have target name)
    if(${have})
        target_compile_definitions(gtrain_objects PRIVATE ${have}=1)
        target_link_libraries(gtrain_objects PRIVATE ${target})
        list(APPEND gtrain_private_libraries $<BUILD_INTERFACE:${target}> $<INSTALL_INTERFACE:${name}>)
        string(APPEND gtrain_pc_private " -l${name}")
    endif()
endmacro()
gtrain_use_library(GTRAIN_HAVE_ONEDNN oneDNN::dnnl dnnl)
gtrain_use_library(GTRAIN_HAVE_ZLIB ZLIB::ZLIB z)
gtrain_use_library(GTRAIN_HAVE_OPENMP OpenMP::OpenMP_C gomp)

add_library(gtrain SHARED $<TARGET_OBJECTS:gtrain_objects>)
set_target_properties(gtrain PROPERTIES
    LINKER_LANGUAGE C VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/gtrain.map
    # A run path for the build alone would be padded with empty entries, which stand for the current folder.
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
target_include_directories(gtrain PUBLIC ${gtrain_public_includes})
target_link_libraries(gtrain PRIVATE ${gtrain_private_libraries})
# Stays mapped after dlclose: OpenMP's threads outlive their last parallel region, and would return into code that is gone.
target_link_options(gtrain PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/gtrain.map -Wl,-z,nodelete)

add_library(gtrain_static STATIC $<TARGET_OBJECTS:gtrain_objects>)
set_target_properties(gtrain_static PROPERTIES LINKER_LANGUAGE C OUTPUT_NAME gtrain)
target_include_directories(gtrain_static PUBLIC ${gtrain_public_includes})
target_link_libraries(gtrain_static PRIVATE ${gtrain_private_libraries})

foreach(target IN ITEMS gtrain gtrain_static)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PRIVATE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:gtrain_flags>)
endforeach()

# A forgotten file or library is an error here and not in the program that links us; sanitizers leave their own symbols open.
if(NOT GTRAIN_SANITIZE)
    target_link_options(gtrain PRIVATE -Wl,--no-undefined)
endif()

add_library(gtrain::gtrain ALIAS gtrain)
add_library(gtrain::gtrain_static ALIAS gtrain_static)

function(gtrain_sources)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    target_sources(gtrain_objects PRIVATE ${ARGN})
endfunction()

function(gtrain_loader_sources)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    target_sources(gtrain PRIVATE ${ARGN})
    target_sources(gtrain_static PRIVATE ${ARGN})
endfunction()

# ---- CUDA --------------------------------------------------------------------------------------------------------------

if(GTRAIN_HAVE_CUDA)
    set(gtrain_cuda_libraries cuDNN::cudnn gtrain_cuda::cublasLt gtrain_cuda::cublas gtrain_cuda::cudart)

    add_library(gtrain_cuda_objects OBJECT)
    set_target_properties(gtrain_cuda_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(gtrain_cuda_objects PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(gtrain_cuda_objects PRIVATE gtrain_flags ${gtrain_cuda_libraries})
    # No C++ runtime: the kernels' host code needs none, and a C host program may have none.
    target_compile_options(gtrain_cuda_objects PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti>)
    # A quarter of the size. Drivers older than those of CUDA 13 could not read it.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
        target_compile_options(gtrain_cuda_objects PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()

    # Never links libgtrain: the loader hands it a table of the host's functions.
    add_library(gtrain_cuda MODULE $<TARGET_OBJECTS:gtrain_cuda_objects>)
    set_target_properties(gtrain_cuda PROPERTIES
        LINKER_LANGUAGE C POSITION_INDEPENDENT_CODE ON
        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/gtrain_cuda.map
        INSTALL_RPATH "$ORIGIN:/usr/local/cuda/lib64")
    target_include_directories(gtrain_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(gtrain_cuda PRIVATE gtrain_flags ${gtrain_cuda_libraries} m ${CMAKE_DL_LIBS} Threads::Threads)
    target_link_options(gtrain_cuda PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/gtrain_cuda.map)
    if(NOT GTRAIN_SANITIZE)
        target_link_options(gtrain_cuda PRIVATE -Wl,--no-undefined)
    endif()

    if(GTRAIN_STATIC_CUDA)
        target_sources(gtrain_static PRIVATE $<TARGET_OBJECTS:gtrain_cuda_objects>)
        target_compile_definitions(gtrain_static PRIVATE GTRAIN_STATIC_CUDA=1)
        foreach(library IN ITEMS cudnn cublasLt cublas cudart)
            set(target gtrain_cuda::${library})
            if(library STREQUAL "cudnn")
                set(target cuDNN::cudnn)
            endif()
            target_link_libraries(gtrain_static PRIVATE $<BUILD_INTERFACE:${target}> $<INSTALL_INTERFACE:${library}>)
        endforeach()
        target_link_libraries(gtrain_static PRIVATE stdc++) # nvcc's host code
        target_link_directories(gtrain_static INTERFACE $<INSTALL_INTERFACE:/usr/local/cuda/lib64>)
    endif()

    function(gtrain_cuda_sources)
        list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
        target_sources(gtrain_cuda_objects PRIVATE ${ARGN})
    endfunction()

    function(gtrain_cuda_module_sources)
        list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
        target_sources(gtrain_cuda PRIVATE ${ARGN})
    endfunction()
endif()
