// cuda/cublas.h
// A table of the cuBLAS functions for measuring matrix products. It is loaded from the library that
// LibTorch or the toolkit brings, or provided by a test. The numbers of cublas_api.h and
// library_types.h are repeated here because cuda.h may be installed without those headers.
#pragma once

#include <cuda.h>

#include <filesystem>
#include <optional>
#include <string>

namespace rp {

enum class BlasType : int { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14 };
enum class BlasCompute : int { kFloat16 = 64, kFloat32 = 68, kTf32 = 77 };
enum class BlasForm : int { kPlain = 0, kTransposed = 1 };
inline constexpr int kBlasAnyAlgorithm = -1;

// Members are cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2 and cublasGemmEx. Each returns
// 0 on success.
struct Cublas {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, CUstream stream) = nullptr;
  int (*gemm_ex)(void* handle, BlasForm a_form, BlasForm b_form, int m, int n, int k, const void* alpha, const void* a,
                 BlasType a_type, int lda, const void* b, BlasType b_type, int ldb, const void* beta, void* c,
                 BlasType c_type, int ldc, BlasCompute compute, int algorithm) = nullptr;
};

struct FoundCublas {
  std::optional<Cublas> table{};
  std::string problem{};  // why there is no table
};

// Loads the library `name` where the loader finds it, or else through the GPU plug-in at `plugin`
// (may be empty), whose LibTorch knows where its own copy is. The library is never unloaded.
[[nodiscard]] FoundCublas load_cublas(const std::filesystem::path& plugin, const std::string& name);
// Returns the name of the library that belongs to the CUDA version of this build.
[[nodiscard]] std::string cublas_name();

}  // namespace rp
