// model_files/part_selection.h
// Decides by name which parameters of a model are trained and which linear layers have LoRA pairs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model_files/config/model_config.h"
#include "roundpipe/trained_parts.h"

namespace rp {

// All names are names in memory (name_in_model()); names of experts contain no expert number.
class PartSelection {
 public:
  // Throws rp::Error (kUsage) for numbers out of range, for text that is not a regular expression, and
  // for corrections next to pairs.
  explicit PartSelection(const TrainedParts& parts);

  // Returns true if the weight of this name is itself trained.
  [[nodiscard]] bool trains(const std::string& name) const;
  // Returns true if the linear layer of this name has a LoRA pair.
  [[nodiscard]] bool adapts(const std::string& layer, bool is_expert_part) const;
  [[nodiscard]] bool trains_corrections() const { return trains_corrections_; }
  [[nodiscard]] const LoraSettings& lora() const { return lora_; }
  [[nodiscard]] FrozenWeights frozen_weights() const { return frozen_weights_; }

 private:
  struct Patterns;
  LoraSettings lora_;
  FrozenWeights frozen_weights_;
  bool trains_corrections_;
  std::shared_ptr<const Patterns> patterns_;
};

// The effect of a selection on one model.
struct SelectionSummary {
  // Linear layers by their names within a decoder layer, with the number of layers that have a pair
  // there.
  std::vector<std::pair<std::string, int>> adapted{};
  std::int64_t num_adapted = 0;     // the total number of pairs
  std::int64_t num_trained = 0;     // parameters, including those of pairs
  std::int64_t num_parameters = 0;  // including those of pairs
  std::int64_t num_quantised = 0;   // frozen parameters that the store has quantised, and their bytes there
  std::int64_t quantised_bytes = 0;
};

// Throws rp::Error (kUsage) if a part of the selection matches nothing, with the names that exist;
// if nothing is trained; if no weight is frozen that could be quantised as the selection wants it; if
// whole experts are trained in addition to pairs; and if no router has the corrections that are to be
// trained.
[[nodiscard]] SelectionSummary summarise(const ModelConfig& config, const TrainedParts& parts);

}  // namespace rp
