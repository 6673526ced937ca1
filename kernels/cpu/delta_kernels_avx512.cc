#include "kernels/cpu/delta_table.h"

namespace rp::models {

const DeltaKernels kAvx512DeltaKernels = RP_DELTA_TABLE("avx512");

}  // namespace rp::models
