#include "kernels/cpu/layer_table.h"

namespace rp::models {

const LayerKernels kAvx2LayerKernels = RP_KERNEL_TABLE("avx2");

}  // namespace rp::models
