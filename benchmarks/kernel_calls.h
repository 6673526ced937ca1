// benchmarks/kernel_calls.h
// Calls each kernel of a table (kernels/gpu_kernels.h) with arguments of a 1.7B-shaped model, for
// programs that time launches, and reports how many bytes a call must read and write.
//
// Owns the GPU memory of the arguments. All calls share it, so they must run one at a time. The
// context must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "kernels/gpu_kernels.h"

namespace rp {

struct KernelSizes {
  std::int64_t tokens = 2048;
  std::int64_t hidden = 2048;
  std::int64_t intermediate = 6144;
  std::int64_t heads = 16;
  std::int64_t head_size = 128;
  std::int64_t vocabulary = 151936;
  std::int64_t max_logit_rows = 2048;  // the loss is computed in chunks of tokens
  std::int64_t experts = 128;          // of a mixture whose tokens are spread evenly, one expert for each token
  std::int64_t expert_size = 768;
};

class KernelCalls {
 public:
  struct Call {
    std::string kernel;       // the name of the table's member, and of the format if there are several
    std::uint64_t bytes = 0;  // of its arguments, each counted once, without scratch memory
    std::function<void(CUstream)> enqueue;
  };

  // Uses bf16 if a kernel supports several formats. Throws rp::Error (kNoResource) if the GPU's
  // memory is too small for these sizes.
  KernelCalls(const CudaContext& context, const models::GpuKernels& table, const KernelSizes& sizes);
  ~KernelCalls();
  KernelCalls(const KernelCalls&) = delete;
  KernelCalls& operator=(const KernelCalls&) = delete;

  [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }

 private:
  void fill(const models::GpuKernels& table);

  const CudaContext& context_;
  const KernelSizes sizes_;
  std::vector<Call> calls_;
  CUdeviceptr data_ = 0;
  std::uint64_t bytes_ = 0;
};

// The speed of a kernel's calls, by the GPU's events over consecutive calls.
struct KernelSpeed {
  std::string kernel{};
  double us = 0;
  double gbs = 0;
};
[[nodiscard]] std::vector<KernelSpeed> measure_kernels(const CudaContext& context, const models::GpuKernels& table,
                                                       const KernelSizes& sizes, int num_calls, int rounds);

}  // namespace rp
