# What `cmake --install` puts under a prefix: rp-launch, rp-plan, train, libroundpipe.so, the public headers, and the package that
# find_package(roundpipe) reads. Everything in it finds everything else by relative paths: the prefix may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
file(RELATIVE_PATH to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(RP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/roundpipe)

# Builds all of it, which is what the README names: `scripts/build.sh release programs`.
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

# libroundpipe.so has no run path: LibTorch is where the program says that loads both. For train that is lib/libtorch, a
# link or copy that whoever installs puts there, or LD_LIBRARY_PATH.
set_target_properties(roundpipe PROPERTIES INSTALL_RPATH "")
set_target_properties(train PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib};$ORIGIN/${to_lib}/libtorch/lib")
add_dependencies(programs roundpipe train)
install(TARGETS roundpipe LIBRARY)
if(TARGET roundpipe_cuda)
  # Beside libroundpipe.so, which looks for it there; LibTorch's libraries are those that the program has loaded.
  set_target_properties(roundpipe_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  add_dependencies(programs roundpipe_cuda)
  install(TARGETS roundpipe_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
