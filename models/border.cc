#include "models/border.h"

namespace rp::models {

Border Border::of(const Tensors& tensors, const LayerBorder& layout) {
  std::size_t place = 0;
  const auto next = [&] {
    const at::Tensor tensor = place < tensors.size() ? tensors[place] : at::Tensor();
    ++place;
    return tensor;
  };
  Border border{.x_bth = tensors.at(0)};
  ++place;
  border.documents_bk = next();
  border.balance.probabilities_e = next();
  border.balance.counts = next();
  if (layout.has_tokens) {
    border.ids_bt = next();
    border.embeddings_bth = next();
  }
  for (const std::int64_t layer : layout.key_layers) {
    KeysAndValues& of_layer = border.keys[layer];
    of_layer.keys = next();
    of_layer.values = next();
  }
  return border;
}

Tensors Border::tensors(const LayerBorder& layout) const {
  Tensors list = {x_bth, documents_bk, balance.probabilities_e, balance.counts};
  if (layout.has_tokens) list.insert(list.end(), {ids_bt, embeddings_bth});
  for (const std::int64_t layer : layout.key_layers) {
    const KeysAndValues& of_layer = keys.at(layer);
    list.insert(list.end(), {of_layer.keys, of_layer.values});
  }
  while (!list.back().defined()) list.pop_back();
  return list;
}

}  // namespace rp::models
