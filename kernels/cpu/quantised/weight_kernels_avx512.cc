#include "kernels/cpu/quantised/weight_table.h"

namespace rp::models {

const WeightKernels kAvx512WeightKernels = RP_WEIGHT_TABLE("avx512");

}  // namespace rp::models
