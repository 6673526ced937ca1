# LibTorch from the wheel in .venv: the imported target rp_torch (libtorch_cpu and libc10 only). The wheel's own
# find_package(Torch) fails without a CUDA toolkit and links the CUDA libraries, which cost every process 0.2 s.
set(RP_TORCH_DIR "" CACHE PATH "Folder of the torch package (default: that of .venv)")
if(NOT RP_TORCH_DIR)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
else()
  set(candidates ${RP_TORCH_DIR})
endif()
list(POP_FRONT candidates RP_TORCH_FOUND)
if(NOT EXISTS "${RP_TORCH_FOUND}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found: run scripts/setup.sh, or give -DRP_TORCH_DIR=<folder of the torch package>, "
                      "or build only the half without it with -DRP_LIBTORCH=OFF")
endif()
add_library(rp_c10 SHARED IMPORTED)
set_target_properties(rp_c10 PROPERTIES IMPORTED_LOCATION ${RP_TORCH_FOUND}/lib/libc10.so)
add_library(rp_torch SHARED IMPORTED)
# The CUDA libraries that libtorch_cpu itself names are found through its own run path.
set_target_properties(rp_torch PROPERTIES
  IMPORTED_LOCATION ${RP_TORCH_FOUND}/lib/libtorch_cpu.so
  INTERFACE_INCLUDE_DIRECTORIES "${RP_TORCH_FOUND}/include;${RP_TORCH_FOUND}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES rp_c10
  INTERFACE_LINK_OPTIONS "-Wl,--unresolved-symbols=ignore-in-shared-libs")

# The OpenMP runtime that libtorch_cpu itself uses; a second one would bring a second pool of threads.
add_library(rp_torch_openmp SHARED IMPORTED)
set_target_properties(rp_torch_openmp PROPERTIES IMPORTED_LOCATION ${RP_TORCH_FOUND}/lib/libgomp.so.1)
