// pipeline/description/description.h
// What a model asks of the store, and whether two processes describe the same one.
#pragma once

#include <string>
#include <vector>

#include "hoststore/catalogue.h"
#include "roundpipe/loss.h"
#include "roundpipe/model.h"

namespace rp {

// The layers' parameters with their tied groups, and the number of buffers. Builds one layer at a time. Throws
// rp::Error (kUsage) for a tie whose name or shape does not fit, for parameters that are not floating point, for
// buffers that require a gradient, for a model without layers.
[[nodiscard]] std::vector<LayerRequest> describe_layers(const Model& model);

// A number that all processes must agree on: losses, ties and the working dtype. Layers are compared one by one.
[[nodiscard]] std::uint64_t fingerprint(const Model& model, const std::vector<Loss>& losses);

// Throws rp::Error (kUserError) naming the first layer that differs from that of the coordinator's pipeline.
void compare_layers(const Model& model, const Catalogue& catalogue, const PipelineRecord& pipeline);

// Throws rp::Error (kUserError) if the layer that this process built (the catalogue's number) has other parameters than
// the coordinator's.
void compare_parameters(const std::vector<NamedParameter>& parameters, const Catalogue& catalogue, int layer);

// A number that changes with the program's file, or 0 if it cannot be read.
[[nodiscard]] std::uint64_t build_id();

}  // namespace rp
