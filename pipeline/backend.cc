#include "pipeline/backend.h"

#include "pipeline/emulated_backend.h"
#include "pipeline/torch_backend.h"

namespace rp {

std::unique_ptr<Backend> make_backend(const RuntimeSettings& settings, const AssignedGpu& gpu, int num_workers) {
  if (*settings.device == "cpu") return std::make_unique<CpuBackend>(settings, num_workers);
  if (settings.device->starts_with(kEmulatedDevice)) return std::make_unique<EmulatedBackend>(settings, num_workers);
  return std::make_unique<GpuBackend>(settings, gpu, num_workers);
}

}  // namespace rp
