// model_files/config/nearest_family.h
// Describes how much a config.json of an unknown family differs from the nearest known family.
#pragma once

#include <string>

#include "model_files/config/config_section.h"

namespace rp {

// Returns, for example, "the nearest is qwen3_moe, which refuses it (partial_rotary_factor is
// '0.25', but must be 1; other values are not supported) and has nothing for
// 'linear_num_key_heads', 'shared_expert_intermediate_size'". The nearest family is the one that
// refuses or leaves unread the fewest keys; of several, the one whose name is most similar to
// `type`. If `file` has a text_config, only that is compared.
[[nodiscard]] std::string nearest_family(const ConfigSection& file, const std::string& type);

}  // namespace rp
