#include "kernels/cpu/delta_table.h"

namespace rp::models {

const DeltaKernels kAvx2DeltaKernels = RP_DELTA_TABLE("avx2");

}  // namespace rp::models
