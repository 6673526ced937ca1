# The torch package of PyTorch (its wheel) as LibTorch: used by our own build and, installed, by programs outside the tree.

# rp_import_libtorch(FOLDER): the imported targets rp_torch (libtorch_cpu and libc10 only) and rp_torch_openmp, and the
# variable RP_TORCH_VERSION. Where FOLDER holds no LibTorch, nothing but RP_TORCH_VERSION, empty. The wheel's own
# find_package(Torch) fails without a CUDA toolkit and links the CUDA libraries, which cost every process 0.2 s.
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
    # The CUDA libraries that libtorch_cpu itself names are found through its own run path.
    set_target_properties(rp_torch PROPERTIES
      IMPORTED_LOCATION "${folder}/lib/libtorch_cpu.so"
      INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
      INTERFACE_LINK_LIBRARIES rp_c10
      INTERFACE_LINK_OPTIONS "-Wl,--unresolved-symbols=ignore-in-shared-libs")

    # The OpenMP runtime that libtorch_cpu itself uses; a second one would bring a second pool of threads.
    add_library(rp_torch_openmp SHARED IMPORTED)
    set_target_properties(rp_torch_openmp PROPERTIES IMPORTED_LOCATION "${folder}/lib/libgomp.so.1")
  endif()
endfunction()
