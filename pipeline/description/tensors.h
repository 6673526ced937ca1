// pipeline/description/tensors.h
// LibTorch tensors and the store's descriptions of them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "hoststore/store.h"
#include "roundpipe/layer.h"

namespace rp {

// A tensor over memory that somebody else owns, of `device`. An absent one is undefined.
[[nodiscard]] at::Tensor tensor_over(const TensorView& view, c10::Device device = c10::kCPU);
[[nodiscard]] Tensors tensors_over(const std::vector<TensorView>& views, c10::Device device = c10::kCPU);

// A tensor of this shape over `data`.
[[nodiscard]] at::Tensor tensor_over(const std::byte* data, at::IntArrayRef shape, at::ScalarType type,
                                     c10::Device device = c10::kCPU);

// A parameter in the store: working copy `copy` of its weight group; its master, where the newest weights are `version`
// (not of a frozen one); the moment that the state arena holds of the group at `offset`, undefined if that is
// kNoOffset.
[[nodiscard]] at::Tensor parameter_view(Store& store, const TensorRecord& parameter, std::uint64_t copy);
[[nodiscard]] at::Tensor master_view(Store& store, const TensorRecord& parameter, std::uint64_t version);
[[nodiscard]] at::Tensor moment_view(Store& store, const TensorRecord& parameter, std::uint64_t offset);

// False for a tied parameter that a lower layer has, too: the lowest one gives name and initial value.
[[nodiscard]] bool is_first_use(const Catalogue& catalogue, const TensorRecord& parameter);

// The description of dense row-major tensors. `tensors` is made so (contiguous, on `device`) and must outlive the
// views. Throws rp::Error (kUsage) for more dimensions than a block can describe.
[[nodiscard]] std::vector<TensorView> views_of(Tensors& tensors, c10::Device device = c10::kCPU);

}  // namespace rp
