#include "benchmarks/optimizer/libtorch_adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace rp {

void libtorch_adamw(const AdamWArrays& arrays, int num_threads) {
  if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
  const auto view = [&](void* data, at::ScalarType type) {
    return at::from_blob(data, {static_cast<std::int64_t>(arrays.n)}, type);
  };
  at::Tensor gradient = view(arrays.gradient_fp32, at::kFloat);
  at::Tensor master = view(arrays.master, at::kFloat);
  gradient.copy_(view(arrays.gradient, at::kBFloat16));
  const at::Tensor step = at::scalar_tensor(10.0F);
  at::_fused_adamw_({master}, {gradient}, {view(arrays.m, at::kFloat)}, {view(arrays.v, at::kFloat)}, {}, {step}, 1e-4,
                    0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
  view(arrays.working, at::kBFloat16).copy_(master);
}

}  // namespace rp
