#include "kernels/cpu/layer_table.h"

namespace rp::models {

const LayerKernels kPortableLayerKernels = RP_KERNEL_TABLE("portable");

}  // namespace rp::models
