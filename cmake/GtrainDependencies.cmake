# oneDNN, zlib and OpenMP. Sets GTRAIN_HAVE_<PART> and, for the summary, gtrain_<part>_note.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# Asks python3 once where its packages lie: wheels may hold CUDA libraries and oneDNN.
function(gtrain_python_paths out)
    if(NOT DEFINED CACHE{GTRAIN_PYTHON_PATHS})
        set(paths "")
        find_program(GTRAIN_PYTHON NAMES python3 python)
        mark_as_advanced(GTRAIN_PYTHON)
        if(GTRAIN_PYTHON)
            execute_process(
                COMMAND ${GTRAIN_PYTHON} -c
                    "import site,sys;print(';'.join([sys.prefix]+site.getsitepackages()+[site.getusersitepackages()]))"
                OUTPUT_VARIABLE paths OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        endif()
        set(GTRAIN_PYTHON_PATHS "${paths}" CACHE INTERNAL "python3's prefix and package folders")
    endif()
    set(${out} "${GTRAIN_PYTHON_PATHS}" PARENT_SCOPE)
endfunction()

# ---- oneDNN ------------------------------------------------------------------------------------------------------------

set(GTRAIN_HAVE_ONEDNN OFF)
set(gtrain_onednn_note "not wanted")
if(GTRAIN_ONEDNN STREQUAL "AUTO" AND "thread" IN_LIST GTRAIN_SANITIZE)
    set(gtrain_onednn_note "off: its threads are not instrumented")
elseif(GTRAIN_ONEDNN)
    find_package(oneDNN 2.6 QUIET)
    if(oneDNN_FOUND)
        set(GTRAIN_HAVE_ONEDNN ON)
        set(gtrain_onednn_note "${oneDNN_VERSION} (${oneDNN_LIBRARY})")
    elseif(GTRAIN_ONEDNN STREQUAL "AUTO")
        set(gtrain_onednn_note "not found (Debian: libdnnl-dev; pip: onednn-devel-cpu-gomp): the plain kernels are used")
    else()
        message(FATAL_ERROR "GTRAIN_ONEDNN=ON, but oneDNN 2.6 or newer was not found. Install libdnnl-dev, or set oneDNN_ROOT.")
    endif()
endif()

# ---- OpenMP: only to run on the same threads as oneDNN -----------------------------------------------------------------

set(GTRAIN_HAVE_OPENMP OFF)
if(GTRAIN_OPENMP STREQUAL "AUTO")
    # clang brings a second OpenMP runtime beside the one oneDNN was built with.
    if(GTRAIN_HAVE_ONEDNN AND oneDNN_THREADING STREQUAL "OMP" AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND
       NOT "thread" IN_LIST GTRAIN_SANITIZE)
        find_package(OpenMP QUIET COMPONENTS C)
        set(GTRAIN_HAVE_OPENMP ${OpenMP_C_FOUND})
    endif()
elseif(GTRAIN_OPENMP)
    find_package(OpenMP REQUIRED COMPONENTS C)
    set(GTRAIN_HAVE_OPENMP ON)
endif()
set(gtrain_openmp_note "off: own threads")
if(GTRAIN_HAVE_OPENMP)
    set(gtrain_openmp_note "${OpenMP_C_VERSION}")
endif()

# ---- zlib --------------------------------------------------------------------------------------------------------------

set(GTRAIN_HAVE_ZLIB OFF)
set(gtrain_zlib_note "not wanted")
if(GTRAIN_ZLIB)
    find_package(ZLIB QUIET)
    if(ZLIB_FOUND)
        set(GTRAIN_HAVE_ZLIB ON)
        set(gtrain_zlib_note "${ZLIB_VERSION_STRING}")
    elseif(GTRAIN_ZLIB STREQUAL "AUTO")
        set(gtrain_zlib_note "not found (Debian: zlib1g-dev): gzip files are refused by name")
    else()
        message(FATAL_ERROR "GTRAIN_ZLIB=ON, but zlib was not found. Install zlib1g-dev.")
    endif()
endif()
