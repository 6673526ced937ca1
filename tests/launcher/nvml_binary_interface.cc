// Checks launcher/machine/nvml.h against NVIDIA's own header.
#include <nvml.h>

#include <cstddef>

#include "launcher/machine/nvml.h"

namespace rp::nvml {

static_assert(sizeof(PciInfo) == sizeof(nvmlPciInfo_t));
static_assert(offsetof(PciInfo, domain) == offsetof(nvmlPciInfo_t, domain));
static_assert(offsetof(PciInfo, bus) == offsetof(nvmlPciInfo_t, bus));
static_assert(offsetof(PciInfo, device) == offsetof(nvmlPciInfo_t, device));
static_assert(offsetof(PciInfo, bus_id) == offsetof(nvmlPciInfo_t, busId));

static_assert(sizeof(Memory) == sizeof(nvmlMemory_t));
static_assert(offsetof(Memory, total) == offsetof(nvmlMemory_t, total));
static_assert(offsetof(Memory, free) == offsetof(nvmlMemory_t, free));

static_assert(sizeof(Result) == sizeof(nvmlReturn_t));
static_assert(kSuccess == NVML_SUCCESS && kNoPermission == NVML_ERROR_NO_PERMISSION);
static_assert(kDriverNotLoaded == NVML_ERROR_DRIVER_NOT_LOADED && kGpuIsLost == NVML_ERROR_GPU_IS_LOST);
static_assert(kVersionMismatch == NVML_ERROR_LIB_RM_VERSION_MISMATCH);

static_assert(sizeof(int) == sizeof(nvmlComputeMode_t));
static_assert(kExclusiveThread == NVML_COMPUTEMODE_EXCLUSIVE_THREAD && kProhibited == NVML_COMPUTEMODE_PROHIBITED);
static_assert(kExclusiveProcess == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS && NVML_DEVICE_MIG_ENABLE == 1);

static_assert(kTextBytes >= NVML_DEVICE_UUID_V2_BUFFER_SIZE && kTextBytes >= NVML_DEVICE_NAME_V2_BUFFER_SIZE);
static_assert(kTextBytes >= NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);

}  // namespace rp::nvml
