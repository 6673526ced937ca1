#include "kernels/cpu/quantised/weight_table.h"

namespace rp::models {

const WeightKernels kAvx2WeightKernels = RP_WEIGHT_TABLE("avx2");

}  // namespace rp::models
