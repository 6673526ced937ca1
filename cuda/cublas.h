// cuda/cublas.h
// The functions of cuBLAS that matrix products are measured with, as a table: loaded from the library that LibTorch or
// the toolkit brings, or a test's own. Declared here with the numbers of cublas_api.h and library_types.h: cuda.h may
// be there without them.
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

// Members are cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2, cublasGemmEx; each gives 0 where it went well.
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
  std::string problem{};  // why there is none
};

// By its name alone, where the loader finds it, else through the plug-in for GPUs, whose LibTorch knows where its own
// is. `plugin`: its path, or empty. Never unloaded. `name`: of the library.
[[nodiscard]] FoundCublas load_cublas(const std::filesystem::path& plugin, const std::string& name);
// Of the CUDA that this was built with.
[[nodiscard]] std::string cublas_name();

}  // namespace rp
