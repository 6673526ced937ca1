// model_files/config/families/gemma.h
// Reads what Gemma 3 and Gemma 4 have in common.
#pragma once

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

// Fills `config` except its layers and the kind of its norms. Returns a layer with norms before and
// after attention and MLP, but without window, rotation and scale. `vocabulary`: if the file has none.
// Throws rp::Error (kBadInput) as read_common() does.
[[nodiscard]] DecoderLayerConfig read_gemma_layer(const ConfigSection& file, std::int64_t vocabulary,
                                                  ModelConfig& config);

}  // namespace rp
