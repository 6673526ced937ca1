// roundpipe/recompute.h
// What a layer may carry from its forward to the recompute of that forward before the backward, as a mixture of experts
// its routing: data that is dear to compute again, or that must not be decided twice.
//
// Called by a layer's forward(), in the thread that runs it. Throws rp::Error (kUsage) anywhere else, but for
// outputs_are_read().
#pragma once

#include "roundpipe/layer.h"

namespace rp {

// Keeps `data` for the recompute of this layer in this microbatch. At most once a forward; the tensors (undefined ones
// allowed) must not require gradients. Does nothing where no recompute will follow: in an evaluation, in a stage that
// goes on to the backward at once, and in the recompute itself.
void save_for_recompute(const Tensors& data);

// True while forward() runs for the second time.
[[nodiscard]] bool is_recomputing();

// What the first forward saved. Throws rp::Error if nothing was saved, or this is no recompute.
[[nodiscard]] const Tensors& recompute_data();

// False in a recompute that is done for the backward's sake alone: of a stage's last layer, and of every layer where
// each is recomputed by itself. Then only the shapes and dtypes of what forward() returns count, and the graph behind
// it, not the values: a product that only they need may be left out. True everywhere else, also outside of a forward().
[[nodiscard]] bool outputs_are_read();

}  // namespace rp
