#include "kernels/cpu/quantised/weight_table.h"

namespace rp::models {

const WeightKernels kPortableWeightKernels = RP_WEIGHT_TABLE("portable");

}  // namespace rp::models
