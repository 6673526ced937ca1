// model_files/part_selection.h
// Decides by their names which parameters of a model are trained, and which linear layers have pairs of LoRA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model_files/config/model_config.h"
#include "roundpipe/trained_parts.h"

namespace rp {

// Names are those in memory (name_in_model()), those of experts without their numbers.
class PartSelection {
 public:
  // Throws rp::Error (kUsage) for numbers out of range and for what is no regular expression.
  explicit PartSelection(const TrainedParts& parts);

  // Whether the weight of this name is trained as it is.
  [[nodiscard]] bool trains(const std::string& name) const;
  // Whether the linear layer of this name has a pair.
  [[nodiscard]] bool adapts(const std::string& layer, bool is_expert_part) const;
  [[nodiscard]] const LoraSettings& lora() const { return lora_; }

 private:
  struct Patterns;
  LoraSettings lora_;
  std::shared_ptr<const Patterns> patterns_;
};

// What a selection comes to in one model.
struct SelectionSummary {
  std::vector<std::pair<std::string, int>>
      adapted{};                    // linear layers by their names within a decoder layer, and how many of them
  std::int64_t num_adapted = 0;     // of them all
  std::int64_t num_trained = 0;     // parameters, those of pairs included
  std::int64_t num_parameters = 0;  // likewise
};

// Throws rp::Error (kUsage) where a part of the selection matches nothing, with names that there are; where nothing is
// trained; and where experts are trained beside pairs.
[[nodiscard]] SelectionSummary summarise(const ModelConfig& config, const TrainedParts& parts);

}  // namespace rp
