#include "worker/observers/task_ranges.h"

#include "common/text.h"

namespace rp {

void TaskRanges::task_begun(const Command& command) {
  if (profiler_ == nullptr) return;
  push(cat(phase_name(command.phase), " of layers ", command.first_layer, "-", command.end_layer - 1, ", pipeline ",
           command.pipeline, ", round ", command.round, ", step ", command.step));
}

void TaskRanges::microbatch_begun(int microbatch, bool is_recompute) {
  if (profiler_ != nullptr) push(cat(is_recompute ? "recompute of microbatch " : "microbatch ", microbatch));
}

void TaskRanges::layer(int number) {
  if (profiler_ == nullptr || depth_ < 2) return;
  if (in_layer_) close(depth_ - 1);
  push(number < 0 ? std::string("loss") : cat("layer ", number));
  in_layer_ = true;
}

void TaskRanges::push(const std::string& text) {
  profiler_->push(text);
  ++depth_;
}

void TaskRanges::close(int depth) {
  for (; depth_ > depth; --depth_) {
    profiler_->pop();
    in_layer_ = false;
  }
}

}  // namespace rp
