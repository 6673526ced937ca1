// pipeline/description/tensors.h
// Converts between LibTorch tensors and the store's descriptions of tensors.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "hoststore/store.h"
#include "roundpipe/layer.h"

namespace rp {

// Returns a tensor on `device` over memory that the caller does not own. An absent tensor becomes
// an undefined one.
[[nodiscard]] at::Tensor tensor_over(const TensorView& view, c10::Device device = c10::kCPU);
[[nodiscard]] Tensors tensors_over(const std::vector<TensorView>& views, c10::Device device = c10::kCPU);

// Returns a tensor of this shape over `data`.
[[nodiscard]] at::Tensor tensor_over(const std::byte* data, at::IntArrayRef shape, at::ScalarType type,
                                     c10::Device device = c10::kCPU);

// These return views of a parameter in the store: of working copy `copy` of its weight group; of
// its master, where `version` is the newest version of the weights (not for a frozen parameter);
// and of the moment that the state arena holds for its group at `offset`, which is undefined if
// `offset` is kNoOffset. If the run has several nodes, masters and moments are undefined, except
// masters that are working copies, too: no node has all of them.
[[nodiscard]] at::Tensor parameter_view(Store& store, const TensorRecord& parameter, std::uint64_t copy);
[[nodiscard]] at::Tensor master_view(Store& store, const TensorRecord& parameter, Version version);
[[nodiscard]] at::Tensor moment_view(Store& store, const TensorRecord& parameter, std::uint64_t offset);

// The part of a parameter's weights or optimizer state that this node owns; on one node all of it.
struct OwnedPart {
  at::Tensor value;         // a view of the store, with one dimension; perhaps without elements
  std::uint64_t begin = 0;  // counted from the first element of the parameter
};
// Returns the elements of a trained parameter that a node owns, counted from its first one; {0, 0} if
// there are none.
[[nodiscard]] ElementRange owned_elements_of(const Store& store, const TensorRecord& parameter, int node);
// These return the parts of what master_view(), moment_view() and parameter_view() return.
[[nodiscard]] OwnedPart owned_master(Store& store, const TensorRecord& parameter, Version version);
[[nodiscard]] OwnedPart owned_moment(Store& store, const TensorRecord& parameter, std::uint64_t offset);
[[nodiscard]] OwnedPart owned_working(Store& store, const TensorRecord& parameter, Version version);

// Returns false for a tied parameter that a lower layer has, too: the lowest layer determines name
// and initial value.
[[nodiscard]] bool is_first_use(const Catalogue& catalogue, const TensorRecord& parameter);

// Describes tensors as dense and row-major. Changes `tensors` to be so (contiguous, on `device`);
// they must outlive the views. Throws rp::Error (kUsage) if a tensor has more dimensions than a
// block can describe.
[[nodiscard]] std::vector<TensorView> views_of(Tensors& tensors, c10::Device device = c10::kCPU);

// Returns types and shapes, for people: "BFloat16[2, 16, 64], Long[2, 16]".
[[nodiscard]] std::string shapes_text(const Tensors& tensors);

}  // namespace rp
