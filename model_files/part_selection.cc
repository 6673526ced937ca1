#include "model_files/part_selection.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "model_files/name_pattern.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

constexpr int kMaxRank = 65536;
constexpr std::size_t kShownNames = 12;  // how many of the existing names a message lists
constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kPair = ".lora_A.weight";

// Compiles a pattern that matches any part of a name, as for --freeze and --train; nullopt for an
// empty text.
std::optional<NamePattern> compile(const char* what, const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(NamePattern(what, text, NamePattern::Extent::kAnywhere));
}

// Returns true if `text` is a list: it has only the characters of names, and commas. Any other text
// is a regular expression.
bool is_list(std::string_view text) {
  return std::ranges::all_of(text,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == ','; });
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

bool is_named(const std::string& layer, const std::string& target) {
  return layer == target || (layer.ends_with(target) && layer[layer.size() - target.size() - 1] == '.');
}

}  // namespace

struct PartSelection::Patterns {
  std::vector<std::string> targets;  // the names, if the targets are a list
  std::optional<NamePattern> target, freeze, train;
};

PartSelection::PartSelection(const TrainedParts& parts)
    : lora_(parts.lora), frozen_weights_(parts.frozen_weights), trains_corrections_(parts.corrections) {
  const LoraSettings& lora = parts.lora;
  if (lora.rank < 0 || lora.rank > kMaxRank || !(lora.alpha >= 0) || !(lora.dropout >= 0 && lora.dropout < 1)) {
    throw Error(ExitCode::kUsage,
                cat("LoRA of rank ", lora.rank, ", alpha ", lora.alpha, ", dropout ", lora.dropout,
                    ": the rank must be from 0 to ", kMaxRank, ", alpha 0 or more, dropout from 0 and below 1"));
  }
  if (parts.corrections && lora.rank > 0) {
    throw Error(ExitCode::kUsage,
                "the corrections of routers are to be updated in addition to LoRA: an adapter has no place for them; "
                "leave one of the two out");
  }
  auto patterns = std::make_shared<Patterns>();
  if (lora.targets != kAllLinear) {
    if (is_list(lora.targets)) {
      patterns->targets = split(lora.targets);
    } else {
      patterns->target.emplace("LoRA's target", lora.targets, NamePattern::Extent::kWhole);
    }
  }
  patterns->freeze = compile("what to freeze,", parts.freeze);
  patterns->train = compile("what to train,", parts.train);
  patterns_ = std::move(patterns);
}

bool PartSelection::trains(const std::string& name) const {
  const auto matches = [&](const std::optional<NamePattern>& pattern) { return pattern && pattern->matches(name); };
  return matches(patterns_->train) || (lora_.rank == 0 && !matches(patterns_->freeze));
}

bool PartSelection::adapts(const std::string& layer, bool is_expert_part) const {
  if (lora_.rank == 0 || (is_expert_part && !lora_.on_experts) || trains(layer + ".weight")) return false;
  if (patterns_->freeze && patterns_->freeze->matches(layer + ".weight")) return false;
  if (lora_.targets == kAllLinear) return true;
  if (patterns_->target) return patterns_->target->matches(layer);
  return std::ranges::any_of(patterns_->targets, [&](const std::string& target) { return is_named(layer, target); });
}

SelectionSummary summarise(const ModelConfig& config, const TrainedParts& parts) {
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  SelectionSummary summary{.num_trained = num_trained(layers), .num_parameters = num_parameters(layers)};
  std::set<std::string> linears, weights;
  std::set<std::string> trained_experts, trained_alone;  // of the latter, each is not a whole module
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    for (const LayerTensor& tensor : layers[i].tensors) {
      const std::string name = name_in_model(config, layer, tensor.name);
      if (tensor.name.ends_with(kPair)) {
        const std::string linear = tensor.name.substr(0, tensor.name.size() - kPair.size());
        const auto found = std::ranges::find(summary.adapted, linear, &std::pair<std::string, int>::first);
        ++(found == summary.adapted.end() ? summary.adapted.emplace_back(linear, 0) : *found).second;
        ++summary.num_adapted;
      }
      if (tensor.is_pair || tensor.is_buffer) continue;
      if (tensor.format) {
        summary.num_quantised += tensor.num_elements();
        summary.quantised_bytes += tensor.quantised_bytes();
      }
      if (tensor.name == kHeadTensor && config.tied_head) continue;  // it is frozen or trained with the embedding
      weights.insert(name);
      if (tensor.is_trained && tensor.is_of_experts && tensor.name.ends_with(".weight")) trained_experts.insert(name);
      if (tensor.is_trained && !name.ends_with(".weight") && !name.ends_with(".bias")) trained_alone.insert(name);
    }
    if (layer == 0 || layer > config.num_layers()) continue;
    for (const LinearShape& linear : linears_of(config.layers[i - 1], config.hidden)) {
      if (linear.is_slice) continue;  // it has no pair
      if (!linear.is_expert_part || parts.lora.on_experts) linears.insert(name_in_model(config, layer, linear.name));
    }
  }
  const auto nothing = [](const std::string& what, const std::string& text, const std::set<std::string>& names) {
    return Error(ExitCode::kUsage, cat(what, " ", quoted_name(text), " matches nothing; there are ",
                                       list_of({names.begin(), names.end()}, kShownNames)));
  };
  for (const auto& [what, text] :
       {std::pair("what to freeze,", &parts.freeze), std::pair("what to train,", &parts.train)}) {
    const auto pattern = compile(what, *text);
    const auto is_found = [&](const std::string& name) { return pattern->matches(name); };
    if (pattern && std::ranges::none_of(weights, is_found)) throw nothing(what, *text, weights);
  }
  if (parts.lora.rank > 0 && parts.lora.targets != kAllLinear) {
    std::vector<std::string> targets =
        is_list(parts.lora.targets) ? split(parts.lora.targets) : std::vector{parts.lora.targets};
    for (const std::string& target : targets) {
      TrainedParts one;
      one.lora = parts.lora;
      one.lora.targets = target;
      const PartSelection alone(one);
      if (std::ranges::none_of(linears, [&](const std::string& linear) { return alone.adapts(linear, false); })) {
        throw nothing("LoRA's target", target, linears);
      }
    }
    if (targets.empty()) throw nothing("LoRA's target", parts.lora.targets, linears);
  }
  const auto has_experts = [](const DecoderLayerConfig& layer) { return layer.mlp.experts.has_value(); };
  if (parts.lora.rank > 0 && parts.lora.on_experts && std::ranges::none_of(config.layers, has_experts)) {
    throw Error(ExitCode::kUsage, cat("LoRA is to adapt experts, and this model (", config.family, ") has none"));
  }
  if (!parts.train.empty() && parts.lora.rank == 0 && parts.freeze.empty()) {
    throw Error(ExitCode::kUsage, cat("what to train, ", quoted_name(parts.train),
                                      ", changes nothing: without LoRA or frozen parts all weights are trained; to "
                                      "train nothing else, freeze '.*' too"));
  }
  const bool wants_quantised =
      parts.frozen_weights != FrozenWeights::kAsInFiles && parts.frozen_weights != FrozenWeights::kNone;
  if (wants_quantised && summary.num_quantised == 0) {
    throw Error(
        ExitCode::kUsage,
        "frozen weights are to be quantised, but no weight of a linear layer is frozen that could be: train pairs "
        "(LoRA), or freeze weights; MXFP4 needs layers whose number of inputs is a multiple of 32");
  }
  const auto is_corrected = [](const LayerTensors& layer) {
    return std::ranges::any_of(layer.tensors, &LayerTensor::is_correction);
  };
  if (parts.corrections && std::ranges::none_of(layers, is_corrected)) {
    throw Error(ExitCode::kUsage, cat("the corrections of routers are to be updated (a router-bias update rate above "
                                      "0), and this model (",
                                      config.family, ") has none; leave the rate out"));
  }
  if (summary.num_trained == 0) throw Error(ExitCode::kUsage, "nothing is trained: all weights are frozen");
  if (parts.lora.rank > 0 && !trained_experts.empty()) {
    throw Error(ExitCode::kUsage, cat(*trained_experts.begin(),
                                      " is to be trained in addition to LoRA: PEFT's adapters cannot hold whole "
                                      "experts; give them pairs instead"));
  }
  if (parts.lora.rank > 0 && !trained_alone.empty()) {
    throw Error(ExitCode::kUsage, cat(*trained_alone.begin(),
                                      " is to be trained in addition to LoRA: PEFT's adapters hold modules as a whole, "
                                      "and this is a part of one; leave it out"));
  }
  if (parts.lora.is_dora && parts.lora.on_experts) {
    throw Error(ExitCode::kUsage, "DoRA has no form for experts; leave one of the two out");
  }
  return summary;
}

}  // namespace rp
