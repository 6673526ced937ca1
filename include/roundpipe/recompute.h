// roundpipe/recompute.h
// Carries data from a layer's forward pass to the recompute of this forward pass before the
// backward pass. It is for data that is expensive to compute again, or that must not be decided
// twice, such as the routing of a mixture of experts.
//
// These functions are called by a layer's forward(), in the thread that runs it. Anywhere else they
// throw rp::Error (kUsage), except outputs_are_read().
#pragma once

#include "roundpipe/layer.h"

namespace rp {

// Keeps `data` for the recompute of this layer in this microbatch. May be called at most once in a
// forward(). The tensors, which may be undefined, must not require gradients. Does nothing if no
// recompute will follow: in an evaluation, in a stage that continues directly with the backward
// pass, and in the recompute itself.
void save_for_recompute(const Tensors& data);

// Returns true while forward() runs for the second time.
[[nodiscard]] bool is_recomputing();

// Returns what the first forward() saved. Throws rp::Error if nothing was saved, or outside of a
// recompute.
[[nodiscard]] const Tensors& recompute_data();

// Returns false in a recompute whose output values are not read: that of a stage's last layer, and
// that of every layer if each is recomputed by itself. Then only the shapes, the dtypes and the
// autograd graph of the results of forward() matter: a product that only their values need may be
// left out. Returns true everywhere else, also outside of a forward().
[[nodiscard]] bool outputs_are_read();

}  // namespace rp
