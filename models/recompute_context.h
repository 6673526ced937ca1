// models/recompute_context.h
// What the functions of roundpipe/recompute.h work on while a layer's forward runs.
#pragma once

#include "roundpipe/recompute.h"

namespace rp {

struct RecomputeContext {
  bool keeps = false;  // what is saved will be needed
  bool is_recompute = false;
  bool outputs_are_read = true;
  const Tensors* data = nullptr;  // in a recompute: what was saved, or null
  bool has_saved = false;
  Tensors saved;
};

// Makes `context` the one of this thread until its end. Not nested.
class RecomputeScope {
 public:
  explicit RecomputeScope(RecomputeContext& context);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;
};

}  // namespace rp
