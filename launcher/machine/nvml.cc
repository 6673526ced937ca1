#include "launcher/machine/nvml.h"

#include <dlfcn.h>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

[[noreturn]] void throw_unusable(const std::string& why) {
  throw Error(ExitCode::kNoResource,
              cat("no CUDA device: ", why,
                  "; install NVIDIA's driver, or start the container with its GPUs (docker run --gpus all)"));
}

template <typename Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
}

template <typename Function>
void require(void* library, const char* symbol, Function& function) {
  find(library, symbol, function);
  if (function == nullptr) throw_unusable(cat(kLibrary, " lacks ", symbol, ", its driver is too old"));
}

}  // namespace

NvmlLibrary NvmlLibrary::open() {
  NvmlLibrary library;
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw_unusable(cat(kLibrary, " cannot be loaded (", dlerror(), ")"));
  library.handle_ = std::shared_ptr<void>(handle, [](void* opened) { dlclose(opened); });
  NvmlTable& table = library.table_;
  require(handle, "nvmlInit_v2", table.init);
  require(handle, "nvmlShutdown", table.shutdown);
  require(handle, "nvmlDeviceGetCount_v2", table.device_count);
  require(handle, "nvmlDeviceGetHandleByIndex_v2", table.device_by_index);
  require(handle, "nvmlDeviceGetUUID", table.uuid);
  require(handle, "nvmlDeviceGetName", table.name);
  require(handle, "nvmlDeviceGetMemoryInfo", table.memory);
  require(handle, "nvmlDeviceGetPciInfo_v3", table.pci);
  find(handle, "nvmlErrorString", table.error_string);
  find(handle, "nvmlSystemGetDriverVersion", table.driver_version);
  find(handle, "nvmlSystemGetCudaDriverVersion_v2", table.cuda_version);
  find(handle, "nvmlDeviceGetCurrPcieLinkGeneration", table.link_generation);
  find(handle, "nvmlDeviceGetCurrPcieLinkWidth", table.link_width);
  find(handle, "nvmlDeviceGetMaxPcieLinkGeneration", table.most_link_generation);
  find(handle, "nvmlDeviceGetMaxPcieLinkWidth", table.most_link_width);
  find(handle, "nvmlDeviceGetCudaComputeCapability", table.capability);
  find(handle, "nvmlDeviceGetComputeMode", table.compute_mode);
  find(handle, "nvmlDeviceGetMigMode", table.mig_mode);
  find(handle, "nvmlDeviceGetMaxMigDeviceCount", table.most_mig_instances);
  find(handle, "nvmlDeviceGetMigDeviceHandleByIndex", table.mig_instance);
  return library;
}

}  // namespace rp
