// cuda/driver.h
// The functions of the CUDA driver that we use, as a table: loaded from the driver's library, or a test's own
// (tests/cuda/fake_driver/fake_driver.h).
//
// Members are the driver's functions of the same name without `cu`, as cuda.h of the toolkit declares them. A table is
// never changed once somebody uses it, and lives as long as the process.
#pragma once

#include <cuda.h>

#include <string>

#include "roundpipe/error.h"

// member, function of the driver.
#define RP_CUDA_FUNCTIONS(X)                                \
  X(init, cuInit)                                           \
  X(driver_get_version, cuDriverGetVersion)                 \
  X(get_error_name, cuGetErrorName)                         \
  X(get_error_string, cuGetErrorString)                     \
  X(device_get_count, cuDeviceGetCount)                     \
  X(device_get, cuDeviceGet)                                \
  X(device_get_uuid, cuDeviceGetUuid)                       \
  X(device_get_name, cuDeviceGetName)                       \
  X(device_get_attribute, cuDeviceGetAttribute)             \
  X(primary_context_retain, cuDevicePrimaryCtxRetain)       \
  X(primary_context_release, cuDevicePrimaryCtxRelease)     \
  X(primary_context_set_flags, cuDevicePrimaryCtxSetFlags)  \
  X(context_set_current, cuCtxSetCurrent)                   \
  X(stream_priority_range, cuCtxGetStreamPriorityRange)     \
  X(mem_get_info, cuMemGetInfo)                             \
  X(mem_alloc, cuMemAlloc)                                  \
  X(mem_free, cuMemFree)                                    \
  X(mem_host_alloc, cuMemHostAlloc)                         \
  X(mem_free_host, cuMemFreeHost)                           \
  X(mem_host_register, cuMemHostRegister)                   \
  X(mem_host_unregister, cuMemHostUnregister)               \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer) \
  X(memcpy_async, cuMemcpyAsync)                            \
  X(memset_d8_async, cuMemsetD8Async)                       \
  X(stream_create, cuStreamCreateWithPriority)              \
  X(stream_destroy, cuStreamDestroy)                        \
  X(stream_query, cuStreamQuery)                            \
  X(stream_wait_event, cuStreamWaitEvent)                   \
  X(stream_write_value64, cuStreamWriteValue64)             \
  X(stream_wait_value64, cuStreamWaitValue64)               \
  X(launch_host_func, cuLaunchHostFunc)                     \
  X(event_create, cuEventCreate)                            \
  X(event_destroy, cuEventDestroy)                          \
  X(event_record, cuEventRecord)                            \
  X(event_query, cuEventQuery)                              \
  X(event_synchronize, cuEventSynchronize)                  \
  X(event_elapsed_time, cuEventElapsedTime)                 \
  X(ipc_get_event_handle, cuIpcGetEventHandle)              \
  X(ipc_open_event_handle, cuIpcOpenEventHandle)

namespace rp {

struct CudaDriver {
#define RP_CUDA_MEMBER(member, function) decltype(&function) member = nullptr;
  RP_CUDA_FUNCTIONS(RP_CUDA_MEMBER)
#undef RP_CUDA_MEMBER
};

// The driver of this machine, loaded at the first call and initialised. Throws rp::Error (kNoResource) with what to do:
// there is no driver, it is too old, or it has no GPU for this process.
[[nodiscard]] const CudaDriver& cuda_driver();

// What the driver calls a result: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
[[nodiscard]] std::string cuda_result_text(const CudaDriver& driver, CUresult result);

// Throws rp::Error unless the result is CUDA_SUCCESS: kNoResource where memory or a device is missing, else kUserError,
// since what a stream reports late is most often a fault in a kernel. `what`: what was being done, as "copying 4 MiB to
// the GPU".
void check_cuda(const CudaDriver& driver, CUresult result, const std::string& what);

}  // namespace rp
