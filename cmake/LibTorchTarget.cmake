# Uses the torch package of PyTorch (its wheel) as LibTorch, in this project's build and, once
# installed, in programs outside of the tree.

# rp_import_libtorch(FOLDER): defines the imported targets rp_torch (only libtorch_cpu and libc10)
# and rp_torch_openmp, and the variable RP_TORCH_VERSION. If FOLDER contains no LibTorch, only sets
# RP_TORCH_VERSION to "". The wheel's own find_package(Torch) fails without a CUDA toolkit, and it
# links the CUDA libraries, which delay the start of every process by 0.2 s.
function(rp_import_libtorch folder)
  set(version "")
  if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/include/torch/headeronly/version.h")
    file(READ "${folder}/include/torch/headeronly/version.h" header)
    string(REGEX MATCH "define TORCH_VERSION[ \\\n]+\"([0-9.]+)" found "${header}")
    set(version "${CMAKE_MATCH_1}")
  endif()
  set(RP_TORCH_VERSION "${version}" PARENT_SCOPE)
  if(version AND NOT TARGET rp_torch)
    add_library(rp_c10 SHARED IMPORTED)
    set_target_properties(rp_c10 PROPERTIES IMPORTED_LOCATION "${folder}/lib/libc10.so")
    add_library(rp_torch SHARED IMPORTED)
    # The CUDA libraries that libtorch_cpu needs are found through its own run path.
    set_target_properties(rp_torch PROPERTIES
      IMPORTED_LOCATION "${folder}/lib/libtorch_cpu.so"
      INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
      INTERFACE_LINK_LIBRARIES rp_c10
      INTERFACE_LINK_OPTIONS "-Wl,--unresolved-symbols=ignore-in-shared-libs")

    # The OpenMP runtime that libtorch_cpu itself uses. A second runtime would add a second pool of
    # threads.
    add_library(rp_torch_openmp SHARED IMPORTED)
    set_target_properties(rp_torch_openmp PROPERTIES IMPORTED_LOCATION "${folder}/lib/libgomp.so.1")
  endif()
endfunction()
