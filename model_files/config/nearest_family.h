// model_files/config/nearest_family.h
// Says how far a config.json of an unknown family is from the families that there are.
#pragma once

#include <string>

#include "model_files/config/config_section.h"

namespace rp {

// For example "the nearest is qwen3_moe, which refuses it (partial_rotary_factor is '0.25', but must be 1; other values
// are not supported) and has nothing for 'linear_num_key_heads', 'shared_expert_intermediate_size'". The nearest family
// is the one that refuses and leaves unread the fewest keys; of several, the one with the name most like `type`. `file`
// may have a text_config, which is then what counts.
[[nodiscard]] std::string nearest_family(const ConfigSection& file, const std::string& type);

}  // namespace rp
