#include "kernels/cpu/layer_table.h"

namespace rp::models {

const LayerKernels kAvx512LayerKernels = RP_KERNEL_TABLE("avx512");

}  // namespace rp::models
