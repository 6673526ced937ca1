// pipeline/description/initial_weights.h
// Writes the initial weights of a model's layers to the store.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "hoststore/store.h"
#include "roundpipe/model.h"

namespace rp {

// Writes the initial weights of a pipeline to the store: masters and the first working copy. Builds
// one layer at a time, each with a random seed of its own, and calls `on_layer` after each. Returns
// the buffers of the layers that have any, by layer.
[[nodiscard]] std::map<int, std::vector<NamedBuffer>> write_initial_weights(const Model& model,
                                                                            const PipelineRecord& pipeline,
                                                                            Store& store,
                                                                            const std::function<void()>& on_layer);

// Returns the same buffers, and writes nothing: for weights that are in the store already.
[[nodiscard]] std::map<int, std::vector<NamedBuffer>> initial_buffers(const Model& model,
                                                                      const PipelineRecord& pipeline);

}  // namespace rp
