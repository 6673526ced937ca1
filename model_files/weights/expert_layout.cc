#include "model_files/weights/expert_layout.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/bad_input.h"
#include "common/check.h"
#include "model_files/layer_tensors.h"

namespace rp {
namespace {

// Returns the layout of a tensor whose name continues with `rest` after that of the experts' module; nullopt if
// the name occurs in several layouts or in none.
std::optional<ExpertLayout> layout_of(std::string_view rest, bool is_interleaved) {
  if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') return ExpertLayout::kEach;
  if (rest.ends_with("_proj_blocks") || rest.ends_with("_proj_scales")) return ExpertLayout::kMxfp4;
  if (rest == "gate_up_proj" || rest == "down_proj")
    return is_interleaved ? ExpertLayout::kInterleaved : ExpertLayout::kFused;
  return std::nullopt;
}

}  // namespace

std::string_view name_of_expert_part(std::string_view parameter) {
  constexpr std::string_view kModule = "experts.";
  const std::size_t place = parameter.find(kModule);
  RP_ASSERT(place != std::string_view::npos);
  return parameter.substr(place + kModule.size());
}

ExpertLayout find_expert_layout(const ModelConfig& config, const WeightFiles& weights) {
  std::optional<ExpertLayout> found;
  std::string example;
  const std::vector<std::string> names = weights.names();
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const auto& experts = config.layers[i].mlp.experts;
    if (!experts) continue;
    const std::string prefix = name_in_checkpoint(config, i + 1, experts->name + ".");
    for (auto name = std::ranges::lower_bound(names, prefix); name != names.end() && name->starts_with(prefix);
         ++name) {
      const std::optional<ExpertLayout> layout =
          layout_of(std::string_view(*name).substr(prefix.size()), experts->is_interleaved);
      if (!layout) continue;
      if (found && *found != *layout) {
        throw bad_input(weights.directory(), "the weight files hold experts in several layouts: tensors ",
                        quoted_name(example), " and ", quoted_name(*name),
                        " do not go together; write the model again in one of them");
      }
      found = layout;
      example = *name;
    }
  }
  if (config.quantization == "mxfp4" && found != ExpertLayout::kMxfp4) {
    throw bad_input(
        weights.directory(),
        "config.json says that the weights are quantised (quantization_config, 'mxfp4'), but the weight files have no ",
        "experts in blocks with scales", found ? cat(", but ", quoted_name(example)) : "",
        "; remove quantization_config");
  }
  return found.value_or(ExpertLayout::kEach);
}

ExpertLayout written_layout(ExpertLayout layout) {
  return layout == ExpertLayout::kMxfp4 ? ExpertLayout::kInterleaved : layout;
}

}  // namespace rp
