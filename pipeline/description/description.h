// pipeline/description/description.h
// Translates a model to requests for the store, and compares the descriptions of two processes.
#pragma once

#include <vector>

#include "hoststore/catalogue.h"
#include "roundpipe/loss.h"
#include "roundpipe/model.h"

namespace rp {

// Describes the parameters of the layers with their tied groups, and the number of buffers. Builds
// one layer at a time. Throws rp::Error (kUsage) for a tie whose name or shape does not fit, for
// parameters that are not floating point, for buffers that require a gradient, and for a model
// without layers.
[[nodiscard]] std::vector<LayerRequest> describe_layers(const Model& model);

// Returns a hash of losses, ties and the working dtype, which must be equal in all processes.
// Layers are compared one by one.
[[nodiscard]] std::uint64_t fingerprint(const Model& model, const std::vector<Loss>& losses);

// Throws rp::Error (kUserError) naming the first layer that differs from that of the coordinator's
// pipeline.
void compare_layers(const Model& model, const Catalogue& catalogue, const PipelineRecord& pipeline);

// Throws rp::Error (kUserError) if a layer that this process built has other parameters than the
// coordinator's. `layer` is the catalogue's number.
void compare_parameters(const std::vector<NamedParameter>& parameters, const Catalogue& catalogue,
                        CatalogueLayer layer);

// Returns a number that changes with the program's file, or 0 if the file cannot be read. Two copies of a file have
// different numbers.
[[nodiscard]] std::uint64_t build_id();

// Returns a checksum of the contents of the program and of this library, and the version of LibTorch. It is the same
// for copies on different machines.
[[nodiscard]] std::string build_contents();

}  // namespace rp
