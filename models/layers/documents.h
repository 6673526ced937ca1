// models/layers/documents.h
// Describes packed sequences: rows of a batch that contain several documents, one after the other,
// each of which sees only itself.
//
// The documents are described by a tensor documents_bk, int64: the lengths of each row's documents
// in order, followed by zeros. If positions of a row of t positions are left, they form one more
// document. It contains lengths rather than positions because the number k of lengths is known from
// the shape: LibTorch's flash attention needs the number of documents, and no thread has to wait
// for the GPU to find it out. As a tensor with one row per sequence, it is cut into microbatches
// and passed on between layers like any other tensor.
//
// Lengths are wrong if one is negative, or if the sum of a row is more than t. Functions that read
// them on the CPU then throw. Functions on a GPU cannot throw; they stay within the row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace rp::models {

struct Document {
  std::int64_t first = 0;  // position in its row
  std::int64_t length = 0;
};

// Returns the documents of each row, including the one that is formed by the remaining positions,
// and without empty ones. Waits for the GPU if the tensor is there. Throws rp::Error (kUserError),
// naming the row, if the lengths are wrong.
[[nodiscard]] std::vector<std::vector<Document>> documents_of_rows(const at::Tensor& documents_bk, std::int64_t t);

// Returns for each position its distance from the beginning of its document: [b, t] int64, on the
// device of documents_bk.
[[nodiscard]] at::Tensor document_positions(const at::Tensor& documents_bk, std::int64_t t);

// Returns where each of the b (k + 1) documents of the batch, some of which are empty, begins among
// the b t positions, followed by b t: int32 [b (k + 1) + 1]. This is flash attention's cu_seqlens.
[[nodiscard]] at::Tensor document_bounds(const at::Tensor& documents_bk, std::int64_t t);

// Returns whether the lengths of each row are wrong: [b] bool.
[[nodiscard]] at::Tensor have_wrong_lengths(const at::Tensor& documents_bk, std::int64_t t);

}  // namespace rp::models
