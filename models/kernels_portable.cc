#include "models/kernel_table.h"

namespace rp::models {

const Kernels kPortableKernels = RP_KERNEL_TABLE("portable");

}  // namespace rp::models
