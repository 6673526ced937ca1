#include "kernels/cpu/delta_table.h"

namespace rp::models {

const DeltaKernels kPortableDeltaKernels = RP_DELTA_TABLE("portable");

}  // namespace rp::models
