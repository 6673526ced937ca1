// models/recompute_context.h
// The state behind the functions of roundpipe/recompute.h while a layer's forward() runs.
#pragma once

#include "roundpipe/recompute.h"

namespace rp {

struct RecomputeContext {
  bool keeps = false;  // saved data will be needed
  bool is_recompute = false;
  bool outputs_are_read = true;
  const Tensors* data = nullptr;  // in a recompute: the data that was saved, or null if nothing was saved
  bool has_saved = false;
  Tensors saved;
};

// Makes `context` the current one of this thread as long as the scope exists. Scopes must not be
// nested.
class RecomputeScope {
 public:
  explicit RecomputeScope(RecomputeContext& context);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;
};

}  // namespace rp
