# Finds LibTorch in the torch wheel of .venv.
set(RP_TORCH_DIR "" CACHE PATH "Folder of the torch package (default: that of .venv)")
if(NOT RP_TORCH_DIR)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
else()
  set(candidates ${RP_TORCH_DIR})
endif()
list(POP_FRONT candidates RP_TORCH_FOUND)
include(LibTorchTarget)
rp_import_libtorch("${RP_TORCH_FOUND}")
if(NOT RP_TORCH_VERSION)
  message(FATAL_ERROR "LibTorch not found: run scripts/setup.sh, or give -DRP_TORCH_DIR=<folder of the torch package>, "
                      "or build only the half without it with -DRP_LIBTORCH=OFF")
endif()

# at::parallel_for() is a template over OpenMP: without -fopenmp it would run on one thread. The
# OpenMP runtime is that of the wheel.
rp_headers(rp_tensor_headers OPTIONS -fopenmp LIBRARIES rp_torch HEADERS <ATen/ATen.h> <torch/csrc/autograd/custom_function.h>)
# Also includes torch::nn and torch::optim, which add two seconds to the compilation of every
# source.
rp_headers(rp_module_headers OPTIONS -fopenmp LIBRARIES rp_torch HEADERS <torch/torch.h>)

# Assertion messages name LibTorch's headers by their path within LibTorch. GCC names system headers
# by their path without links, so both paths are mapped.
file(REAL_PATH ${RP_TORCH_FOUND} RP_TORCH_REAL)
foreach(folder IN ITEMS ${RP_TORCH_FOUND} ${RP_TORCH_REAL})
  target_compile_options(rp_flags INTERFACE -fmacro-prefix-map=${folder}/=torch/)
endforeach()
