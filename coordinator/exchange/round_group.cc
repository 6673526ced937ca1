#include "coordinator/exchange/round_group.h"

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

std::uint64_t RoundGroup::count_round(int pipeline, bool has_gradients) {
  if (has_gradients) {
    if (is_open() && pipeline != pipeline_) check_complete(cat("forward_backward() of pipeline ", pipeline));
    if (!is_open()) first_call_ = num_calls_;
    pipeline_ = pipeline;
    num_rounds_ = (num_rounds_ + 1) % num_nodes_;
  }
  return num_calls_++;
}

void RoundGroup::check_wait(std::uint64_t call, std::string_view what) const {
  if (call >= first_call_) check_complete(what);
}

void RoundGroup::check_complete(std::string_view what) const {
  if (!is_open()) return;
  const int num_missing = num_nodes_ - num_rounds_;
  throw Error(ExitCode::kUsage,
              cat(what, " after ", num_rounds_, " of ", num_nodes_, " rounds that the ", num_nodes_,
                  " nodes compute together (--reduce nccl): first call forward_backward() of pipeline ", pipeline_, " ",
                  num_missing, " more time", num_missing == 1 ? "" : "s", ", or use --reduce mpi"));
}

}  // namespace rp
