#include "cuda/driver.h"

#include <dlfcn.h>

#include "common/text.h"

namespace rp {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

[[noreturn]] void fail_without_gpu(const std::string& why, const std::string& remedy) {
  throw Error(ExitCode::kNoResource, cat("no CUDA device: ", why, "; ", remedy, ", or use --device cpu"));
}

// True for results after which a context does nothing any more, so that its process must end (cuda.h). Not for a
// device-side assert, which ends a context too: this is how a layer's kernel reports wrong input.
bool is_context_lost(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN: return true;
    default: return false;
  }
}

std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

CudaDriver load_driver() {
  // Never closed, because the driver's threads would outlive any owner of the library.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    fail_without_gpu(cat("the NVIDIA driver's library ", kLibrary, " is not there"),
                     "install the driver (in a container: start it with GPUs)");
  }
  const auto find = reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    fail_without_gpu(cat("the NVIDIA driver is older than CUDA ", version_text(CUDA_VERSION)), "install a newer one");
  }
  CudaDriver driver;
  const auto load = [&](auto& member, const char* name) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status{};
    if (find(name, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
        function == nullptr) {
      fail_without_gpu(cat("the NVIDIA driver has no ", name, " of CUDA ", version_text(CUDA_VERSION)),
                       "install a newer one");
    }
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(function);
  };
#define RP_CUDA_LOAD(member, function) load(driver.member, #function);
  RP_CUDA_FUNCTIONS(RP_CUDA_LOAD)
#undef RP_CUDA_LOAD
  const CUresult result = driver.init(0);
  if (result == CUDA_ERROR_NO_DEVICE) {
    fail_without_gpu("the NVIDIA driver finds none for this process",
                     "look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES");
  }
  if (result != CUDA_SUCCESS) {
    fail_without_gpu(cat("the NVIDIA driver does not start: ", cuda_result_text(driver, result)),
                     "look at `nvidia-smi` and at the kernel's log");
  }
  return driver;
}

}  // namespace

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = load_driver();
  return driver;
}

std::string cuda_result_text(const CudaDriver& driver, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(result, &name) != CUDA_SUCCESS || driver.get_error_string(result, &text) != CUDA_SUCCESS) {
    return cat("CUDA error ", static_cast<int>(result));
  }
  return cat(name, " (", text, ")");
}

void check_cuda(const CudaDriver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const bool is_missing = result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NO_DEVICE ||
                          result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_DEVICE_UNAVAILABLE;
  const char* const remedy =
      result == CUDA_ERROR_OUT_OF_MEMORY ? "; another program may use this GPU: look at `nvidia-smi`" : "";
  throw Error(is_missing                ? ExitCode::kNoResource
              : is_context_lost(result) ? ExitCode::kGpuFailed
                                        : ExitCode::kUserError,
              cat(what, ": ", cuda_result_text(driver, result), remedy));
}

}  // namespace rp
