// coordinator/exchange/round_group.h
// Follows the groups of rounds that the workers of all nodes compute together: one round with gradients for each node,
// whose gradients they exchange (docs/design/several-nodes.md#nccl-between-gpus).
//
// No round of a group ends before all of them have begun. So between its rounds the program must not wait for one of
// them: on another node the call that begins the next one would never be made. Whether a call waits too early follows
// from the calls so far, which are the same on all nodes, so all of them refuse it.
//
// Owned by the Coordinator, for all pipelines. Used by the caller's thread only.
#pragma once

#include <cstdint>
#include <string_view>

namespace rp {

class RoundGroup {
 public:
  // `num_nodes`: 1 if the workers do not exchange gradients; then nothing is refused.
  explicit RoundGroup(int num_nodes) : num_nodes_(num_nodes) {}

  // Returns whether some rounds of a group were begun, and not all.
  [[nodiscard]] bool is_open() const { return num_rounds_ > 0; }

  // Counts the call for a round. Returns its number. Throws rp::Error (kUsage) if it has gradients and the open group
  // is of another pipeline.
  std::uint64_t count_round(int pipeline, bool has_gradients);

  // Throw rp::Error (kUsage) if `what` would wait for a group that is open: for the round of this call; for any.
  void check_wait(std::uint64_t call, std::string_view what) const;
  void check_complete(std::string_view what) const;

 private:
  const int num_nodes_;
  std::uint64_t num_calls_ = 0;
  std::uint64_t first_call_ = 0;  // of the open group
  int num_rounds_ = 0;            // of the open group
  int pipeline_ = 0;              // of the open group
};

}  // namespace rp
