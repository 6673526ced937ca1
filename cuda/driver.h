// cuda/driver.h
// A table of the CUDA driver's functions that this project uses. It is loaded from the driver's
// library, or provided by a test (tests/cuda/fake_driver/fake_driver.h).
//
// Members have the names of the driver's functions without `cu`, and their types are declared by
// the toolkit's cuda.h. A table does not change once it is in use, and exists as long as the
// process.
#pragma once

#include <cuda.h>

#include <string>

#include "roundpipe/error.h"

// Lists the members and the functions of the driver.
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

// Returns the table of this machine's driver, which is loaded and initialised by the first call.
// Throws rp::Error (kNoResource) with the remedy if there is no driver, if it is too old, or if it
// has no GPU for this process.
[[nodiscard]] const CudaDriver& cuda_driver();

// Returns the driver's name and text of a result: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
[[nodiscard]] std::string cuda_result_text(const CudaDriver& driver, CUresult result);

// Throws rp::Error unless the result is CUDA_SUCCESS: kNoResource if memory or a device is missing,
// kGpuFailed if the process has lost its context, as after a kernel's access to an illegal address,
// else kUserError. `what`: the operation in progress, such as "copying 4 MiB to the GPU".
void check_cuda(const CudaDriver& driver, CUresult result, const std::string& what);

}  // namespace rp
