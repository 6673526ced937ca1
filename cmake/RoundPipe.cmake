# Defines how the rooms of this project are built. A folder only needs rp_library(), rp_program()
# and rp_test().

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(Threads REQUIRED)

find_program(RP_CCACHE ccache)
if(RP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_INODECACHE=1 CCACHE_DEPEND=1
      ${RP_CCACHE})
endif()

# rp_cxx_options(target scope option ...): adds options for C++ sources only, because nvcc does not
# know them.
function(rp_cxx_options target scope)
  foreach(option IN LISTS ARGN)
    target_compile_options(${target} ${scope} $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()

add_library(rp_flags INTERFACE)
target_include_directories(rp_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
# Without contraction, the same source computes the same bits with and without fused multiply-add.
rp_cxx_options(rp_flags INTERFACE -Wall -Wextra -Wconversion -ffp-contract=off $<$<BOOL:${RP_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # clang's -Wconversion includes -Wsign-conversion, which GCC's does not: numbers of layers and workers are int here.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)
target_link_libraries(rp_flags INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wrestrict of GCC 12 warns of correct std::string code (GCC bug 105651). -Wsubobject-linkage takes sources that are
  # compiled together (RP_UNITY) for headers.
  rp_cxx_options(rp_flags INTERFACE -fpch-preprocess -Wno-restrict $<$<BOOL:${RP_UNITY}>:-Wno-subobject-linkage>)
endif()
if(RP_SANITIZE)
  # Without object-size, a third of the compile time, and pointer-overflow, half of that of kernels: AddressSanitizer finds the
  # same accesses when they happen.
  rp_cxx_options(rp_flags INTERFACE -fsanitize=${RP_SANITIZE} -fno-sanitize=object-size,pointer-overflow -fno-omit-frame-pointer)
  target_link_options(rp_flags INTERFACE -fsanitize=${RP_SANITIZE})
else()
  # Messages of installed programs name sources by their path in the tree, not by the path on the
  # build machine.
  rp_cxx_options(rp_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
endif()

# rp_headers(name [OPTIONS option ...] [LIBRARIES target ...] HEADERS <header> ...): precompiles
# headers for the targets that use them.
function(rp_headers name)
  cmake_parse_arguments(ARG "" "" "OPTIONS;LIBRARIES;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cc CONTENT "// Nothing but its headers.\n")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE rp_flags ${ARG_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  set_property(TARGET ${name} PROPERTY RP_OPTIONS -fPIC ${ARG_OPTIONS})
  target_compile_options(${name} PRIVATE -fPIC ${ARG_OPTIONS})
endfunction()

# rp_use_headers(name target ...): precompiled headers are included first in the sources of these
# targets. GCC requires the same options for both; therefore programs are compiled with -fPIC, too.
function(rp_use_headers name)
  get_target_property(options ${name} RP_OPTIONS)
  foreach(target IN LISTS ARGN)
    rp_cxx_options(${target} PRIVATE ${options})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endforeach()
endfunction()

# rp_unite(target ...): with RP_UNITY, compiles the sources of these targets several at a time, as if each group were
# one source. Most of the compiler's time goes into headers, which a group includes once.
function(rp_unite)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ${RP_UNITY} UNITY_BUILD_BATCH_SIZE 6)
endfunction()

# The standard headers that most sources include, directly or indirectly.
rp_headers(rp_standard_headers HEADERS <algorithm> <array> <atomic> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional>
  <set> <span> <sstream> <string> <vector>)

# rp_target_of(variable room): sets the variable to the name of a room's library, e.g.
# rp_hoststore_memory for hoststore/memory.
function(rp_target_of variable room)
  string(REPLACE / _ name ${room})
  set(${variable} rp_${name} PARENT_SCOPE)
endfunction()

# rp_library(SOURCES a.cc ... [LIBRARIES target ...]): defines the library of this folder's room. It
# links the rooms that cmake/Rooms.cmake declares.
function(rp_library)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  file(RELATIVE_PATH room ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  get_property(rooms GLOBAL PROPERTY RP_ROOMS)
  if(NOT room IN_LIST rooms)
    message(FATAL_ERROR "${room} is no room of cmake/Rooms.cmake")
  endif()
  rp_target_of(library ${room})
  add_library(${library} STATIC ${ARG_SOURCES})
  rp_unite(${library})
  if(RP_SANITIZE)  # built whole, and clang-tidy reads the same sources: fewer and larger groups take less time
    set_target_properties(${library} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  endif()
  target_link_libraries(${library} PUBLIC rp_flags ${ARG_LIBRARIES})
  get_property(sees_libtorch GLOBAL PROPERTY RP_SEES_LIBTORCH_${room})
  if(sees_libtorch)
    target_link_libraries(${library} PUBLIC rp_torch)
    rp_use_headers(rp_tensor_headers ${library})
  else()
    rp_use_headers(rp_standard_headers ${library})
  endif()
  get_property(uses GLOBAL PROPERTY RP_USES_${room})
  foreach(used IN LISTS uses)
    rp_target_of(target ${used})
    if(TARGET ${target})  # libraries for GPUs do not exist in every build
      target_link_libraries(${library} PUBLIC ${target})
    endif()
  endforeach()
endfunction()

# rp_program(name SOURCES a.cc ... LIBRARIES target ...): defines a program in bin/.
function(rp_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rp_flags ${ARG_LIBRARIES})
endfunction()

# rp_test(name SOURCES a.cc ... LIBRARIES target ... [LABELS unit|unit_one_thread|untimed|system|slow|protocol|gpu]
# [TIMEOUT seconds] [HEADERS name]): defines a GoogleTest program. CTest runs each of its tests separately. Labels:
# - unit_one_thread: neither built nor run under ThreadSanitizer.
# - untimed: runs in release only, two tests at a time; it must not depend on deadlines of seconds.
# - system: runs in release only and one at a time, because it has such deadlines.
# - gpu: needs a GPU, and reports that it is skipped if there is none.
# HEADERS: the name of the precompiled headers (rp_headers()); default: rp_test_headers.
function(rp_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;HEADERS" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS rp_test_headers)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  rp_unite(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE rp_flags ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  # The tests are optimised less than the tested code: docs/design/build.md.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>)
  rp_use_headers(${ARG_HEADERS} ${name})
  if(RP_SANITIZE MATCHES thread AND ARG_LABELS MATCHES one_thread)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  set(lock)
  if("system" IN_LIST ARG_LABELS)
    set(lock RESOURCE_LOCK processors)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${ARG_ENVIRONMENT}" ${lock})
endfunction()

# rp_embed(target FUNCTION file): adds `std::string_view rp::FUNCTION()`, which returns the text of
# the file, to a target. The source is generated again when the file changes. The caller declares
# the function in its own header.
function(rp_embed target function file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${file} RP_EMBEDDED_TEXT)
  set(RP_EMBEDDED_FUNCTION ${function})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded.cc.in ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc @ONLY)
  # Where it follows the header that declares the function, clang warns of the header's [[nodiscard]].
  set_property(SOURCE ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc)
endfunction()
