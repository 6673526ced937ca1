// model_files/config/quantization_config.h
// Reads how the weights of a model's files are quantised: quantization_config in config.json.
#pragma once

#include <string_view>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

// Fills in the members of `config` about quantised weights, if `file` has a quantization_config.
// Methods and variants whose files are not read have a name and no format. Throws rp::Error
// (kBadInput) for members of a wrong type.
void read_quantization(const ConfigSection& file, ModelConfig& config);

// Returns true if `config` says that the files have the weight of a linear layer quantised. `layer` is
// its name in memory, which is compared with the exceptions as transformers does: an exception is a
// whole name, its beginning up to a dot, or its end. It is literal text here, not an expression.
[[nodiscard]] bool is_quantised(const ModelConfig& config, std::string_view layer);

}  // namespace rp
