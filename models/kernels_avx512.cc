#include "models/kernel_table.h"

namespace rp::models {

const Kernels kAvx512Kernels = RP_KERNEL_TABLE("avx512");

}  // namespace rp::models
