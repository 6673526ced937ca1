// pipeline/description/initial_weights.h
// The values that a model's layers begin with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "hoststore/store.h"
#include "roundpipe/model.h"

namespace rp {

// Writes the initial weights of a pipeline into the store: masters and the first working copy. Builds one layer at a
// time, each from a random seed of its own, and calls `on_layer` after it. Returns the layers' buffers, by layer, where
// there are some.
[[nodiscard]] std::map<int, std::vector<NamedBuffer>> write_initial_weights(const Model& model,
                                                                            const PipelineRecord& pipeline,
                                                                            Store& store,
                                                                            const std::function<void()>& on_layer);

}  // namespace rp
