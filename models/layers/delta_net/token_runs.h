// models/layers/delta_net/token_runs.h
// Checks the inputs of this room's operators, and finds the documents that they process.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/delta_kernels.h"
#include "models/layers/documents.h"

namespace rp::models {

// Throws c10::Error, naming the operator, unless all tensors are on the CPU or all on one GPU.
template <std::size_t kCount>
void check_device(const char* operation, const std::array<at::Tensor, kCount>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), operation, ": computes on the CPU or a GPU, not on ",
                tensor.device());
    TORCH_CHECK(tensor.device() == tensors[0].device(), operation, ": tensors are on ", tensor.device(), " and ",
                tensors[0].device());
  }
}

// Returns the documents of each of b rows of t tokens; without document lengths (undefined) each
// row is one document. Throws c10::Error, naming the operator, if the lengths belong to another
// number of rows, and rp::Error (kUserError) if they are wrong.
[[nodiscard]] std::vector<std::vector<Document>> token_runs(const char* operation, const at::Tensor& documents_bk,
                                                            std::int64_t b, std::int64_t t);

// Returns the sums of partial sums [n, ...] over n, in the order of n.
[[nodiscard]] at::Tensor sum_in_order(const at::Tensor& partial_sums);

}  // namespace rp::models
