# Defines what `cmake --install` writes under a prefix: rp-launch, rp-plan, train, libroundpipe.so,
# the public headers, and the package that find_package(roundpipe) reads. All of these find each
# other by relative paths, so the prefix may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
file(RELATIVE_PATH to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(RP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/roundpipe)

# Builds everything that is installed: `scripts/build.sh release programs`, as in the README.
add_custom_target(programs DEPENDS rp-launch rp-plan)
install(TARGETS rp-launch rp-plan RUNTIME)
if(TARGET rp-probe)
  add_dependencies(programs rp-probe)
  install(TARGETS rp-probe RUNTIME)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(NOT RP_LIBTORCH)
  return()
endif()

# libroundpipe.so has no run path: the program that loads it also determines where LibTorch is. For
# train, LibTorch is in lib/libtorch (a link or copy that the installing user creates), or in
# LD_LIBRARY_PATH.
set_target_properties(roundpipe PROPERTIES INSTALL_RPATH "")
set_target_properties(train PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib};$ORIGIN/${to_lib}/libtorch/lib")
add_dependencies(programs roundpipe train)
install(TARGETS roundpipe LIBRARY)
if(TARGET roundpipe_cuda)
  # Installed next to libroundpipe.so, which searches for it there. It uses the LibTorch libraries
  # that the program has loaded.
  set_target_properties(roundpipe_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  add_dependencies(programs roundpipe_cuda)
  install(TARGETS roundpipe_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET roundpipe_mpi)
  add_dependencies(programs roundpipe_mpi)
  install(TARGETS roundpipe_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS train RUNTIME)
install(DIRECTORY include/roundpipe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_package_config_file(cmake/roundpipe-config.cmake.in ${PROJECT_BINARY_DIR}/roundpipe-config.cmake
  INSTALL_DESTINATION ${RP_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/roundpipe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/roundpipe-config.cmake ${PROJECT_BINARY_DIR}/roundpipe-config-version.cmake
              cmake/LibTorchTarget.cmake
  DESTINATION ${RP_PACKAGE_DIR})
