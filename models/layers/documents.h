// models/layers/documents.h
// Packed sequences: rows of a batch that hold several documents one behind the other, each of which sees only itself.
//
// A tensor says where they are: documents_bk, int64, the lengths of each row's documents in order, with zeros behind
// the last. What is left of a row of t positions is one document more. Lengths and not positions, because their number
// k is known from the shape: LibTorch's flash attention wants to be told how many documents there are, and so nobody
// has to wait for the GPU to find out. As a tensor with one row per sequence it is cut into microbatches and handed on
// between layers as every other.
//
// Lengths are wrong if one is negative, or those of a row are more than t in all. What reads them on the CPU throws
// then; what works on a GPU, where nothing can, stays within the row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace rp::models {

struct Document {
  std::int64_t first = 0;  // position in its row
  std::int64_t length = 0;
};

// The documents of each row, empty ones left out, that of the rest included. Waits for a tensor of a GPU. Throws
// rp::Error (kUserError), naming the row.
[[nodiscard]] std::vector<std::vector<Document>> documents_of_rows(const at::Tensor& documents_bk, std::int64_t t);

// Each position counted from the beginning of its document: [b, t] int64, where documents_bk is.
[[nodiscard]] at::Tensor document_positions(const at::Tensor& documents_bk, std::int64_t t);

// Where each of the b (k + 1) documents of the batch begins among its b t positions, some of them empty, and at the end
// b t: int32 [b (k + 1) + 1], flash attention's cu_seqlens.
[[nodiscard]] at::Tensor document_bounds(const at::Tensor& documents_bk, std::int64_t t);

// Whether the lengths of a row are wrong: [b] bool.
[[nodiscard]] at::Tensor have_wrong_lengths(const at::Tensor& documents_bk, std::int64_t t);

}  // namespace rp::models
