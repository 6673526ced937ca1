#include "cuda/cublas.h"

#include <dlfcn.h>

#include <type_traits>

#include "common/text.h"

// If the headers are installed, check that the numbers agree.
#if __has_include(<cublas_api.h>)
#include <cublas_api.h>
static_assert(static_cast<int>(rp::BlasType::kFloat32) == CUDA_R_32F &&
              static_cast<int>(rp::BlasType::kFloat16) == CUDA_R_16F &&
              static_cast<int>(rp::BlasType::kBFloat16) == CUDA_R_16BF);
static_assert(static_cast<int>(rp::BlasCompute::kFloat16) == CUBLAS_COMPUTE_16F &&
              static_cast<int>(rp::BlasCompute::kFloat32) == CUBLAS_COMPUTE_32F &&
              static_cast<int>(rp::BlasCompute::kTf32) == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(static_cast<int>(rp::BlasForm::kPlain) == CUBLAS_OP_N &&
              static_cast<int>(rp::BlasForm::kTransposed) == CUBLAS_OP_T &&
              rp::kBlasAnyAlgorithm == CUBLAS_GEMM_DEFAULT && CUBLAS_STATUS_SUCCESS == 0);
#endif

namespace rp {

std::string cublas_name() { return cat("libcublas.so.", CUDA_VERSION / 1000); }

FoundCublas load_cublas(const std::filesystem::path& plugin, const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  std::string problem = cat(name, " is not among this machine's libraries");
  if (library == nullptr && !plugin.empty()) {
    if (dlopen(plugin.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
      problem += cat(", and the plug-in for GPUs cannot be loaded: ", dlerror());
    } else {
      library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
      problem += ", nor among those of the plug-in for GPUs";
    }
  }
  if (library == nullptr) return {.problem = problem};
  Cublas table;
  bool is_whole = true;
  const auto load = [&](auto& member, const char* function) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(library, function));
    if (member == nullptr) is_whole = false;
  };
  load(table.create, "cublasCreate_v2");
  load(table.destroy, "cublasDestroy_v2");
  load(table.set_stream, "cublasSetStream_v2");
  load(table.gemm_ex, "cublasGemmEx");
  if (!is_whole) return {.problem = cat(name, " lacks functions that it should have")};
  return {.table = table};
}

}  // namespace rp
