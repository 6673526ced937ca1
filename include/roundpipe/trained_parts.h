// roundpipe/trained_parts.h
// Selects the parts of a model that are trained: all weights, pairs of low-rank matrices that are
// added to its weight matrices (LoRA), or weights whose names match regular expressions.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>

namespace rp {

// Settings of LoRA. For a frozen weight W [out, in], a pair A [rank, in], B [out, rank] is trained:
// y = W x + scale() B A dropout(x). As in PEFT, A is initially uniform in +-1/sqrt(in), and B is
// zero. The pairs have the model's dtype, and fp32 masters.
struct LoraSettings {
  int rank = 0;      // 0: no pairs
  double alpha = 0;  // 0: equal to the rank
  double dropout = 0;
  // "rsLoRA": the scale is alpha divided by the square root of the rank.
  bool is_rank_stabilised = false;
  // DoRA: the rows of W + scale() B A are scaled to a length that is trained, too. The gradient
  // treats their length before this scaling as a constant.
  bool is_dora = false;
  // The linear layers that have pairs. "all-linear": those of attention and MLP, but not the LM
  // head. A list such as "q_proj,v_proj": the layers whose name is in the list or ends with a dot
  // and a name in the list. Otherwise a regular expression that must match the whole name, such as
  // "model.layers.7.mlp.up_proj".
  std::string targets = "all-linear";
  // Whether the router and the experts have pairs, each expert its own. If false, they are no
  // targets.
  bool on_experts = false;

  // Returns the factor of B A.
  [[nodiscard]] double scale() const {
    const double size = rank;
    return (alpha == 0 ? size : alpha) / (is_rank_stabilised ? std::sqrt(size) : size);
  }
  bool operator==(const LoraSettings&) const = default;
};

// How the store has the frozen weights of linear layers: those of attention, MLPs and experts, but
// not routers, gates and the LM head. Workers expand them after the upload. kAsInFiles: as in the
// files. kNone: in the model's dtype. The other formats, which docs/design/quantised-weights.md
// describes, apply to weights that are not quantised in the files; kMxfp4 only to those whose number
// of inputs is a multiple of 32.
enum class FrozenWeights : std::uint8_t { kAsInFiles, kNone, kNf4, kMxfp4, kFp8 };

// The parts of a model that are trained. Without pairs, everything is trained; with pairs, only
// they are. Then the weights that match `freeze` are excluded, and finally those that match `train`
// are included. Both are regular expressions (ECMAScript) that are searched for in the names of
// weights, such as "model.layers.7.mlp.up_proj.weight"; empty: matches nothing. The experts of a
// layer have one name together, such as "model.layers.7.mlp.experts.up_proj.weight". A linear layer
// whose weight is trained has no pair.
struct TrainedParts {
  LoraSettings lora{};  // rank 0: no pairs
  std::string freeze{};
  std::string train{};
  // The folder of a PEFT adapter from which the pairs start; models::read_adapter() returns its
  // settings. Empty: the pairs start with their initial values.
  std::filesystem::path adapter{};
  // The corrections of routers (e_score_correction_bias) are updated by
  // StepOptions::router_bias_update_rate; otherwise they stay as they are in the files. They are not
  // counted as parameters, and `freeze` and `train` do not select them. Not together with pairs, since
  // an adapter has no place for them.
  bool corrections = false;
  // How the store has the weights that are not trained.
  FrozenWeights frozen_weights = FrozenWeights::kAsInFiles;

  bool operator==(const TrainedParts&) const = default;
};

}  // namespace rp
