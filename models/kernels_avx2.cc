#include "models/kernel_table.h"

namespace rp::models {

const Kernels kAvx2Kernels = RP_KERNEL_TABLE("avx2");

}  // namespace rp::models
