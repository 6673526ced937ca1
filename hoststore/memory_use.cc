#include "hoststore/memory_use.h"

namespace rp {

const char* memory_use_name(MemoryUse use) {
  switch (use) {
    case MemoryUse::kWeights: return "weights";
    case MemoryUse::kAccumulators: return "fp32 gradients";
    case MemoryUse::kGradients: return "gradients for the download";
    case MemoryUse::kInputs: return "inputs";
    case MemoryUse::kOutputs: return "outputs";
    case MemoryUse::kTensors: return "saved activations and workspace";
    case MemoryUse::kResults: return "results";
  }
  return "?";
}

}  // namespace rp
