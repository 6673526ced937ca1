#include "model_files/config/sigmoid_experts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/text.h"
#include "model_files/config/common_config.h"

namespace rp {
namespace {

void check_groups(const ConfigSection& file, const ExpertsConfig& experts) {
  const std::int64_t of_group = experts.num / experts.num_groups;
  if (experts.num % experts.num_groups != 0 || of_group < 2) {
    throw file.refuse("n_group is ", experts.num_groups, ", but must divide n_routed_experts ", experts.num,
                      " into groups of at least 2 experts");
  }
  if (experts.groups_per_token > experts.num_groups) {
    throw file.refuse("topk_group ", experts.groups_per_token, " is larger than n_group ", experts.num_groups);
  }
  if (experts.per_token > experts.groups_per_token * of_group) {
    throw file.refuse("num_experts_per_tok is ", experts.per_token, ", but topk_group ", experts.groups_per_token,
                      " groups have only ", experts.groups_per_token * of_group, " experts");
  }
}

// Returns for each layer whether it has no experts.
std::vector<bool> read_dense_layers(const ConfigSection& file, const SigmoidExpertDefaults& defaults,
                                    std::int64_t num_layers) {
  constexpr const char *kTypes = "mlp_layer_types", *kFirst = "first_k_dense_replace";
  const bool has_first = file.has(kFirst) && !defaults.reads_types;
  const std::int64_t num_dense = has_first ? file.count(kFirst, kMaxHiddenLayers) : defaults.num_dense;
  std::vector<bool> are_dense;
  for (std::int64_t i = 0; i < num_layers; ++i) are_dense.push_back(i < num_dense);
  if (!defaults.reads_types || !file.has(kTypes)) return are_dense;
  const std::vector<std::string> types = file.texts(kTypes);
  if (types.size() != are_dense.size())
    throw file.refuse(kTypes, " has ", types.size(), " entries, but num_hidden_layers is ", num_layers);
  for (std::size_t i = 0; i < types.size(); ++i) {
    are_dense[i] = types[i] == "dense";
    if (!are_dense[i] && types[i] != "sparse")
      throw file.refuse(kTypes, " has ", quoted_name(types[i]), "; the supported ones are 'dense' and 'sparse'");
  }
  return are_dense;
}

}  // namespace

void add_layers_with_sigmoid_experts(const ConfigSection& file, const DecoderLayerConfig& dense,
                                     const SigmoidExpertDefaults& defaults, ModelConfig& config) {
  const auto number = [&](const char* key, std::int64_t max, std::int64_t otherwise) {
    return file.has(key) ? file.integer(key, max) : otherwise;
  };
  ExpertsConfig experts{.router = ExpertsConfig::Router::kSigmoid};
  experts.num = file.integer("n_routed_experts", kMaxExperts);
  experts.per_token = number("num_experts_per_tok", experts.num, std::min(defaults.per_token, experts.num));
  experts.num_groups = number("n_group", experts.num, defaults.num_groups);
  experts.groups_per_token = number("topk_group", kMaxExperts, defaults.groups_per_token);
  check_groups(file, experts);
  experts.normalises = !file.is_null("norm_topk_prob") && file.boolean("norm_topk_prob", true);
  experts.weight_scale =
      file.has("routed_scaling_factor") ? file.number("routed_scaling_factor", 1e-6, 1e6) : defaults.weight_scale;
  DecoderLayerConfig sparse = dense;
  sparse.mlp.intermediate = file.integer("moe_intermediate_size", kMaxInner);
  const std::int64_t num_shared = number("n_shared_experts", kMaxExperts, 1);
  if (num_shared > kMaxInner / sparse.mlp.intermediate) {
    throw file.refuse("n_shared_experts ", num_shared, " of moe_intermediate_size ", sparse.mlp.intermediate,
                      " are wider than ", kMaxInner);
  }
  experts.shared =
      SharedExpertConfig{.name = "mlp.shared_experts", .intermediate = num_shared * sparse.mlp.intermediate};
  sparse.mlp.experts = experts;
  add_layers(file, sparse, config);
  const std::vector<bool> are_dense = read_dense_layers(file, defaults, config.num_layers());
  for (std::size_t i = 0; i < are_dense.size(); ++i) {
    if (are_dense[i]) config.layers[i] = dense;
  }
  constexpr const char* kFurther = "num_nextn_predict_layers";
  config.num_further_layers = file.has(kFurther) ? file.count(kFurther, kMaxHiddenLayers) : 1;
  file.knows({"output_router_logits"});  // there is no auxiliary loss
}

}  // namespace rp
