// models/border.h
// The tensors that one layer of a model passes to the next.
//
// Shapes: b sequences, t positions, h hidden size, k documents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "model_files/config/layer_border.h"
#include "models/layers/attention/attention.h"
#include "models/layers/expert_balance.h"
#include "roundpipe/layer.h"

namespace rp::models {

// What one layer passes to the next. All but the hidden states may be undefined or absent. As a list: the
// hidden states, the documents, the two tensors of the balance, the ids, the embeddings, and the keys and
// the values of each layer of LayerBorder::key_layers, without undefined tensors at the end.
struct Border {
  at::Tensor x_bth;
  at::Tensor documents_bk{};                     // undefined: each sequence is one document
  ExpertBalance balance{};                       // sum over the layers below
  at::Tensor ids_bt{};                           // if LayerBorder::has_tokens
  at::Tensor embeddings_bth{};                   // likewise
  std::map<std::int64_t, KeysAndValues> keys{};  // by the decoder layer, counted from 0, that they are of

  [[nodiscard]] static Border of(const Tensors& tensors, const LayerBorder& layout);

  // Leaves out what the layer above does not get.
  [[nodiscard]] Tensors tensors(const LayerBorder& layout) const;
};

}  // namespace rp::models
