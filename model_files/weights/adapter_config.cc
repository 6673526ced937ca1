#include "model_files/weights/adapter_config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "common/bad_input.h"
#include "common/checked_files/checksum.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"
#include "model_files/config/config_section.h"
#include "model_files/layer_tensors.h"
#include "model_files/part_selection.h"

namespace rp {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
constexpr std::string_view kPrefix = "base_model.model.";

// Returns "model.norm" for "model.norm.weight".
std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

// Returns the names of the modules that are saved as a whole.
std::set<std::string> saved_modules(const ModelConfig& config, const std::vector<LayerTensors>& layers) {
  std::set<std::string> modules;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const LayerTensor& tensor : layers[i].tensors) {
      const bool is_tied_head = config.tied_head && tensor.name == kHeadTensor;
      if (tensor.is_trained && !tensor.is_pair && !is_tied_head) {
        modules.insert(module_of(name_in_model(config, static_cast<std::int64_t>(i), tensor.name)));
      }
    }
  }
  return modules;
}

// A dot is the only character of a name that has a special meaning in a regular expression.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '.' ? std::string("\\.") : std::string(1, c);
  return text;
}

// Whole names would be correct too, but a short list is easier to read. So names are given within a
// layer if all layers have a pair there. In a multimodal model such names would also match layers
// of its other parts, so there the result is one regular expression.
nlohmann::ordered_json target_modules(const ModelConfig& config, const std::vector<LayerTensors>& layers) {
  constexpr std::string_view kPair = ".lora_A.weight";
  std::map<std::string, std::vector<std::string>> adapted;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const LayerTensor& tensor : layers[i].tensors) {
      if (!tensor.name.ends_with(kPair)) continue;
      const std::string linear = tensor.name.substr(0, tensor.name.size() - kPair.size());
      adapted[linear].push_back(name_in_model(config, static_cast<std::int64_t>(i), linear));
    }
  }
  std::set<std::string> targets;
  std::string pattern;
  const auto add_pattern = [&](const std::string& alternative) {
    pattern += cat(pattern.empty() ? "" : "|", alternative);
  };
  for (const auto& [linear, names] : adapted) {
    if (std::cmp_equal(names.size(), config.num_layers())) {
      targets.insert(linear.substr(linear.rfind('.') + 1));
      add_pattern(cat(escaped(config.module_names.body + "layers."), "\\d+\\.", escaped(linear)));
    } else {
      targets.insert(names.begin(), names.end());
      for (const std::string& name : names) add_pattern(escaped(name));
    }
  }
  if (!config.wrapper.empty()) return pattern;
  return targets;
}

}  // namespace

std::vector<CheckpointTensor> adapter_tensors(const ModelConfig& config, const TrainedParts& parts) {
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  const std::set<std::string> modules = saved_modules(config, layers);
  std::vector<CheckpointTensor> tensors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    for (const LayerTensor& tensor : layers[i].tensors) {
      const std::string called = name_in_model(config, layer, tensor.name);
      const bool is_saved = !tensor.is_pair && modules.contains(module_of(called));
      if (!tensor.is_pair && !is_saved) continue;
      const std::string name = cat(kPrefix, called);
      if (is_of_whole_model(tensor.name)) {
        add_slice(config, layer, tensor, name, tensors);
        continue;
      }
      if (!tensor.is_of_experts) {
        tensors.push_back({.name = name, .shape = tensor.shape, .parts = {{.layer = layer, .parameter = tensor.name}}});
        continue;
      }
      const std::size_t place = name.size() - name_of_expert_part(tensor.name).size();  // of the expert's number
      for (std::int64_t expert = 0; expert < tensor.shape.front(); ++expert) {
        tensors.push_back({.name = cat(name.substr(0, place), expert, ".", name.substr(place)),
                           .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                           .parts = {{.layer = layer, .parameter = tensor.name, .expert = expert}}});
      }
    }
  }
  return tensors;
}

std::string adapter_config_text(const ModelConfig& config, const TrainedParts& parts,
                                const std::filesystem::path& base) {
  const LoraSettings& lora = parts.lora;
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  const std::set<std::string> modules = saved_modules(config, layers);
  nlohmann::ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", std::filesystem::absolute(base).lexically_normal().string()},
      {"inference_mode", true},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha == 0 ? lora.rank : lora.alpha},
      {"lora_dropout", lora.dropout},
      {"use_rslora", lora.is_rank_stabilised},
      {"use_dora", lora.is_dora},
      {"target_modules", target_modules(config, layers)},
      {"modules_to_save", nullptr},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"rank_pattern", nlohmann::json::object()},
      {"alpha_pattern", nlohmann::json::object()}};
  if (!modules.empty()) json["modules_to_save"] = modules;
  if (config.tied_head && modules.contains(module_of(embedding_in_model(config)))) json["ensure_weight_tying"] = true;
  return json.dump(2) + "\n";
}

TrainedParts read_adapter_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kAdapterConfigFile;
  const nlohmann::json json = read_json_file(file, kMaxConfigBytes);
  const ConfigSection config(file, json);
  if (const std::string type = config.text("peft_type", ""); type != "LORA") {
    throw bad_input(file, "is of an adapter of the type ", quoted_name(type), "; only LORA can be trained");
  }
  for (const char* key : {"layers_pattern", "layer_replication", "trainable_token_indices", "fan_in_fan_out",
                          "lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens"}) {
    config.require_absent(key);
  }
  for (const char* key : {"rank_pattern", "alpha_pattern", "loftq_config", "target_parameters", "layers_to_transform",
                          "exclude_modules"}) {
    if (config.has(key) && !json.at(key).empty())
      throw bad_input(file, quoted_name(key), " is not supported; it must be empty");
  }
  if (const std::string bias = config.text("bias", "none"); bias != "none") {
    throw bad_input(file, "\"bias\" is ", quoted_name(bias), "; biases of adapters are not supported");
  }
  ChecksumList::verify_if_listed(folder, ChecksumKind::kSha256, {kAdapterConfigFile, kAdapterWeightsFile});
  TrainedParts parts;
  parts.adapter = folder;
  LoraSettings& lora = parts.lora;
  lora.rank = static_cast<int>(config.integer("r", 65536));
  lora.alpha = config.number("lora_alpha", 1e-9, 1e9);
  lora.dropout = config.has("lora_dropout") ? config.number("lora_dropout", 0, 0.999999) : 0;
  lora.is_rank_stabilised = config.boolean("use_rslora", false);
  lora.is_dora = config.boolean("use_dora", false);
  if (config.has("target_modules") && json.at("target_modules").is_string()) {
    lora.targets = config.text("target_modules", "");
  } else {
    lora.targets.clear();
    for (const std::string& target : config.texts("target_modules"))
      lora.targets += cat(lora.targets.empty() ? "" : ",", target);
  }
  // PEFT selects every module whose name ends with the entry, whether or not a dot precedes it.
  for (const std::string& module : config.texts("modules_to_save")) {
    parts.train += cat(parts.train.empty() ? "" : "|", escaped(module), "\\.(weight|bias)$");
  }
  // Only the adapter's tensors show whether experts have pairs.
  const SafetensorsFile weights = SafetensorsFile::open(folder / kAdapterWeightsFile);
  for (const auto& [name, tensor] : weights.tensors()) {
    if (name.find(".experts.") != std::string::npos) lora.on_experts = true;
  }
  return parts;
}

void check_adapter(const ModelConfig& config, const TrainedParts& parts, const SafetensorsFile& file) {
  constexpr const char* kRemedy = "; is it an adapter of another model?";
  std::set<std::string> expected;
  for (const CheckpointTensor& tensor : adapter_tensors(config, parts)) {
    if (!file.tensors().contains(tensor.name)) {
      throw bad_input(file.path(), "has no tensor ", quoted_name(tensor.name), " of shape ", shape_text(tensor.shape),
                      ", which this model with this adapter_config.json calls for", kRemedy);
    }
    if (const TensorInfo& found = file.tensor(tensor.name); found.shape != tensor.shape) {
      throw bad_input(file.path(), "tensor ", quoted_name(tensor.name), " has shape ", shape_text(found.shape),
                      ", but the model calls for ", shape_text(tensor.shape), kRemedy);
    }
    expected.insert(tensor.name);
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (config.tied_head && name == cat(kPrefix, head_in_model(config))) {
      if (expected.contains(cat(kPrefix, embedding_in_model(config)))) continue;
      throw bad_input(file.path(),
                      "has an LM head of its own, but this model's head is its embedding; adapters that part the two "
                      "cannot be trained");
    }
    if (!expected.contains(name)) {
      throw bad_input(file.path(), "tensor ", quoted_name(name), " belongs to nothing in this model", kRemedy);
    }
  }
}

}  // namespace rp
