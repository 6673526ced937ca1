// roundpipe/trained_parts.h
// What of a model is trained: all of it, pairs of low rank beside its matrices (LoRA), or what regular expressions
// name.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>

namespace rp {

// LoRA: beside a frozen weight W [out, in] a pair A [rank, in], B [out, rank] is trained: y = W x + scale() B A
// dropout(x). As in PEFT, A begins uniform in +-1/sqrt(in) and B at zero. The pairs have the model's dtype and fp32
// masters.
struct LoraSettings {
  int rank = 0;      // 0: no pairs
  double alpha = 0;  // 0: the rank
  double dropout = 0;
  bool is_rank_stabilised = false;  // "rsLoRA": the scale is alpha over the root of the rank
  // DoRA: the rows of W + scale() B A are scaled to a length that is trained, too; the gradient takes their length
  // before that as a constant.
  bool is_dora = false;
  // Which linear layers have pairs. "all-linear": those of attention and MLP, not the LM head. A list as
  // "q_proj,v_proj": those whose name is one of them or ends with a dot and one of them. Else a regular expression that
  // must match the whole name, as "model.layers.7.mlp.up_proj".
  std::string targets = "all-linear";
  bool on_experts = false;  // whether experts have pairs, each its own, and the router; else they are no targets

  // By what B A is multiplied.
  [[nodiscard]] double scale() const {
    const double size = rank;
    return (alpha == 0 ? size : alpha) / (is_rank_stabilised ? std::sqrt(size) : size);
  }
  bool operator==(const LoraSettings&) const = default;
};

// Without pairs everything is trained, with them only they are. Then `freeze` takes from that, and at last `train` adds
// to it: regular expressions (ECMAScript) that are searched in the names of weights, as
// "model.layers.7.mlp.up_proj.weight"; empty: none. Experts have one name together, as
// "model.layers.7.mlp.experts.up_proj.weight". A linear layer whose weight is trained has no pair.
struct TrainedParts {
  LoraSettings lora{};  // of rank 0: no pairs
  std::string freeze{};
  std::string train{};
  // Of a PEFT adapter that the pairs begin from; models::read_adapter() gives its settings. Empty: they begin anew.
  std::filesystem::path adapter{};

  bool operator==(const TrainedParts&) const = default;
};

}  // namespace rp
