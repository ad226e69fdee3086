# Installation, find_package(gtrain) and pkg-config.

include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/gtrain DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS gtrain gtrain_static EXPORT gtrain-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(GTRAIN_HAVE_CUDA)
    install(TARGETS gtrain_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# Says why a GPU cannot be used: for whoever has the library, so that it is no example alone.
if(GTRAIN_BUILD_DOCTOR)
    add_executable(gtrain_doctor ${PROJECT_SOURCE_DIR}/examples/doctor.c)
    target_link_libraries(gtrain_doctor PRIVATE gtrain gtrain_flags)
    file(RELATIVE_PATH gtrain_doctor_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(gtrain_doctor PROPERTIES OUTPUT_NAME gtrain-doctor INSTALL_RPATH "$ORIGIN/${gtrain_doctor_to_lib}"
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    if(GTRAIN_HAVE_CUDA)
        add_dependencies(gtrain_doctor gtrain_cuda) # looked at when it runs
    endif()
    install(TARGETS gtrain_doctor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(gtrain_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gtrain)
install(EXPORT gtrain-targets NAMESPACE gtrain:: DESTINATION ${gtrain_cmake_dir})
configure_package_config_file(cmake/gtrain-config.cmake.in ${PROJECT_BINARY_DIR}/gtrain-config.cmake
    INSTALL_DESTINATION ${gtrain_cmake_dir})
# Before 1.0 a minor version may break.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gtrain-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gtrain-config.cmake ${PROJECT_BINARY_DIR}/gtrain-config-version.cmake
    DESTINATION ${gtrain_cmake_dir})

# Relative to where the .pc file lies, so that an installed tree can be moved.
file(RELATIVE_PATH gtrain_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/gtrain.pc.in ${PROJECT_BINARY_DIR}/gtrain.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gtrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
