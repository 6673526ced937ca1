# The target `tidy` runs clang-tidy (.clang-tidy) over the rooms, for each of their targets anew only if it was compiled anew. It exists
# in builds with clang.

# rp_tidy(target): includes a target. Its sources in tests/ are left out.
function(rp_tidy target)
  if(NOT TARGET tidy)
    return()
  endif()
  set(passed ${PROJECT_BINARY_DIR}/tidy/${target})
  add_custom_command(OUTPUT ${passed}
    COMMAND ${RP_PYTHON3} ${PROJECT_SOURCE_DIR}/scripts/check_tidy.py ${PROJECT_BINARY_DIR} ${target}
    COMMAND ${CMAKE_COMMAND} -E touch ${passed}
    DEPENDS $<TARGET_OBJECTS:${target}> ${PROJECT_SOURCE_DIR}/.clang-tidy ${PROJECT_SOURCE_DIR}/scripts/check_tidy.py
    COMMENT "clang-tidy: ${target}" VERBATIM)
  add_custom_target(tidy_${target} DEPENDS ${passed})
  add_dependencies(tidy tidy_${target})
endfunction()

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR NOT CMAKE_EXPORT_COMPILE_COMMANDS)
  return()
endif()
find_program(RP_PYTHON3 python3)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/tidy)
add_custom_target(tidy)
foreach(room IN LISTS rooms)
  get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${room} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(kind ${target} TYPE)
    if(kind MATCHES "LIBRARY|EXECUTABLE" AND NOT kind STREQUAL "INTERFACE_LIBRARY")
      rp_tidy(${target})
    endif()
  endforeach()
endforeach()
