#include "models/recompute_context.h"

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

thread_local RecomputeContext* t_context = nullptr;

RecomputeContext& context_for(const char* function) {
  if (t_context != nullptr) return *t_context;
  throw Error(ExitCode::kUsage,
              cat(function, "() may be called only by a layer's forward(), in the thread that runs it"));
}

}  // namespace

RecomputeScope::RecomputeScope(RecomputeContext& context) {
  RP_ASSERT(t_context == nullptr);
  t_context = &context;
}

RecomputeScope::~RecomputeScope() { t_context = nullptr; }

void save_for_recompute(const Tensors& data) {
  RecomputeContext& context = context_for("save_for_recompute");
  if (context.has_saved) {
    throw Error(ExitCode::kUsage, "save_for_recompute() was called twice in one forward; save everything in one list");
  }
  for (const at::Tensor& tensor : data) {
    if (tensor.defined() && tensor.requires_grad()) {
      throw Error(ExitCode::kUsage,
                  "save_for_recompute(): a tensor requires a gradient, which would be lost; detach() it");
    }
  }
  context.has_saved = true;
  if (context.keeps) context.saved = data;
}

bool is_recomputing() { return context_for("is_recomputing").is_recompute; }

bool outputs_are_read() { return t_context == nullptr || t_context->outputs_are_read; }

const Tensors& recompute_data() {
  const RecomputeContext& context = context_for("recompute_data");
  if (!context.is_recompute) {
    throw Error(ExitCode::kUsage, "recompute_data() is for a recompute; check is_recomputing() before calling it");
  }
  if (context.data == nullptr) {
    throw Error(ExitCode::kUsage,
                "recompute_data(): the first forward of this layer saved nothing for this microbatch");
  }
  return *context.data;
}

}  // namespace rp
