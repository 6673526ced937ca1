// coordinator/updates/pending_step.h
// Tracks a step from the first task of its rounds to its last updated weight group: which groups
// have final gradients, what is known of these, and what the step does to each group.
//
// The gradients of a step are collected until step() is called. A group is open while it is held: by tasks that use it
// until they are committed and their gradients added, by the rounds of other nodes until their gradients are added, and
// by sends of the copy that the update overwrites. It is ready, permanently, once step() was called and nothing holds
// it: only the step uses its gradient then, and no thread or process reads that copy. Groups are the trained weight
// groups of one pipeline.
//
// Owned by the Updates and guarded by their mutex. The Catalogue and the list of groups must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "common/lifecycle.h"
#include "coordinator/updates/step_record.h"
#include "coordinator/updates/step_request.h"
#include "hoststore/catalogue.h"
#include "optimizer/update.h"

namespace rp {

// The gradient of a use, as reported at the commit of a task.
struct CommittedGradient {
  UseId use{};
  std::uint64_t round = 0;           // within the step
  std::uint64_t released_after = 0;  // the value of the use's `gradient_released` once the gradient has been read
  std::uint64_t checksum = 0;        // only with --check-consistency
};

enum class StepState : std::uint8_t {
  kCollecting,  // tasks of its rounds are accepted and committed
  kCalled,      // step() was called
  kNormKnown,   // its gradients are final, and their norm is known: it is skipped or not
  kUpdating,    // groups are being updated
  kApplied,     // its version is complete in all groups
};

// A step in kUpdating whose coordinator has died is finished by Updates::recover(), without a PendingStep.
inline constexpr LifecycleTable<StepState, 5, 7> kStepLifecycle = {
    "step",
    {"collecting", "called", "norm known", "updating", "applied"},
    {{
        {StepState::kCollecting, StepState::kCalled, "step() was called"},
        {StepState::kCalled, StepState::kNormKnown, "all groups are ready, and the step is a barrier"},
        {StepState::kCalled, StepState::kUpdating, "a group is ready"},
        {StepState::kCalled, StepState::kApplied, "there are no groups"},
        {StepState::kNormKnown, StepState::kUpdating, "all groups are ready"},
        {StepState::kNormKnown, StepState::kApplied, "there are no groups"},
        {StepState::kUpdating, StepState::kApplied, "all groups are updated"},
    }}};

class PendingStep {
 public:
  // `version`: of the weights that the step makes. `scales_loss`: true if the loss is scaled, so that the step is
  // skipped on overflow. `is_recorded`: another coordinator must be able to finish the updates, so they begin once
  // everything is known of the step.
  PendingStep(Version version, const Catalogue& catalogue, std::uint32_t pipeline, std::span<const GroupId> groups,
              bool scales_loss, bool is_recorded);

  // Which nodes end a hold of a group.
  enum class Holder : std::uint8_t { kThisNode, kOtherNodes };
  // hold(): the group must not be updated before this is undone by release() of the same holder, which returns true
  // if the group became ready. REQUIRES: the group is not ready.
  void hold(GroupId group, Holder holder = Holder::kThisNode);
  [[nodiscard]] bool release(GroupId group, Holder holder = Holder::kThisNode);
  // Returns true if only other nodes hold groups.
  [[nodiscard]] bool waits_for_other_nodes() const { return num_holds_ == 0 && num_holds_of_others_ > 0; }

  // Notes that step() was called.
  void call(Version used_version, StepRequest request);
  // Notes that the forward pass of the step's next round is committed. `buffers`: by layer, after this round.
  void end_forward(std::map<int, std::vector<std::byte>> buffers);
  // Notes that all tasks of a round with gradients are committed.
  void end_round(const std::vector<double>& losses) { results_.losses.push_back(losses); }
  [[nodiscard]] const StepResults& results() const { return results_; }
  [[nodiscard]] const StepRequest& request() const { return request_; }
  [[nodiscard]] bool is_called() const { return !lifecycle_.is(StepState::kCollecting); }
  [[nodiscard]] bool is(StepState state) const { return lifecycle_.is(state); }
  void move_to(StepState state) {
    lifecycle_.move_to(state, static_cast<std::int64_t>(version_.value()), number_of_pipeline_);
  }

  // Stores the gradient of a use, from the step's last round so far.
  void set_gradient(const CommittedGradient& gradient) { gradients_[gradient.use] = gradient; }
  // Returns the gradients of all uses of a group.
  [[nodiscard]] std::vector<CommittedGradient> gradients_of(GroupId group) const;
  // Return whether these elements of a round's gradient are the next ones that its use's sum needs,
  // and whether they are the round's last ones that this node owns. Rounds are added in order.
  [[nodiscard]] bool is_next(UseId use, std::uint64_t round, const ElementRange& elements) const;
  [[nodiscard]] bool is_last(UseId use, const ElementRange& elements) const {
    return elements.end == catalogue_.owned(group_of(use)).end;
  }
  // Notes that they are added.
  void add(UseId use, const ElementRange& elements);

  // Returns true if all groups must be ready, and the norm known, before the first one is updated.
  [[nodiscard]] bool is_barrier() const;
  // Returns true if a group can be updated now, or the squares summed.
  [[nodiscard]] bool can_update() const;
  // Returns the number of groups that have become ready so far, including those that were taken.
  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  // Removes and returns the first ready group, in layer order. REQUIRES: can_update(); the pipeline
  // has groups.
  [[nodiscard]] GroupId take_ready();
  // Counts a group whose new version is published, which all nodes have updated.
  void count_published() { ++num_published_; }
  // Returns true if all groups are published and all squares known.
  [[nodiscard]] std::uint32_t num_published() const { return num_published_; }
  [[nodiscard]] bool is_complete() const { return num_published_ == groups_.size() && squares_ == Squares::kKnown; }

  // Stores the sum of squares of a group's gradient.
  void set_square_sum(GroupId group, double sum) { square_sums_[group] = sum; }
  // Notes that this node has summed the squares of all that it owns, and that all other nodes have.
  void set_squares_summed() { squares_ = Squares::kSummed; }
  void set_squares_known() { squares_ = Squares::kKnown; }
  [[nodiscard]] bool squares_are_summed() const { return squares_ != Squares::kNone; }
  [[nodiscard]] bool squares_are_known() const { return squares_ == Squares::kKnown; }
  // Returns true once all groups were taken.
  [[nodiscard]] bool all_are_taken() const { return num_ready_ == groups_.size() && ready_.empty(); }
  // Computes the outcome: the norm, the layers with a gradient that is not finite, and whether the
  // step is skipped. `loss_scale`: of used_version(). REQUIRES: all square sums are set.
  void finish_norm(double loss_scale);
  [[nodiscard]] bool norm_is_known() const { return norm_known_; }

  // Returns what clipping and loss scaling do to a gradient. REQUIRES: if the step is a barrier,
  // its norm is known; otherwise the loss is not scaled.
  [[nodiscard]] UpdateStep scaling() const;
  // Returns what the step does to the parts of a group; nothing if the step is skipped. `number`:
  // counts the steps that are not skipped, including this one. REQUIRES: as for scaling().
  [[nodiscard]] std::vector<UpdateSpan> rules_of(GroupId group, std::uint64_t number) const;

  [[nodiscard]] Version used_version() const { return used_version_; }
  [[nodiscard]] std::uint64_t call_hash() const { return request_.call_hash; }
  // Returns the function that the step applies instead of rules; may be empty.
  [[nodiscard]] const WholeUpdate& function() const { return request_.function; }
  [[nodiscard]] const std::shared_ptr<StepOutcome>& outcome() const { return outcome_; }

 private:
  [[nodiscard]] GroupId group_of(UseId use) const { return catalogue_.uses()[use].group; }
  // Returns true if a gradient that is not finite causes the step to be skipped.
  [[nodiscard]] bool may_be_skipped() const;

  const Version version_;
  const Catalogue& catalogue_;
  const std::uint32_t number_of_pipeline_;
  const PipelineRecord& pipeline_;
  const std::span<const GroupId> groups_;
  const bool scales_loss_;
  const bool is_recorded_;
  Lifecycle<kStepLifecycle> lifecycle_;
  Version used_version_{};
  StepRequest request_;
  StepResults results_;
  bool norm_known_ = false;
  std::uint64_t num_forwards_ = 0;  // rounds whose forward pass is committed
  const std::shared_ptr<StepOutcome> outcome_ = std::make_shared<StepOutcome>();
  enum class Squares : std::uint8_t { kNone, kSummed, kKnown };
  Squares squares_ = Squares::kNone;
  std::map<GroupId, int> holds_;  // by group
  std::int64_t num_holds_ = 0;    // of all groups, of this node
  std::int64_t num_holds_of_others_ = 0;
  std::map<GroupId, double> square_sums_;         // by group
  std::map<UseId, CommittedGradient> gradients_;  // by use
  struct SumProgress {
    std::uint64_t round = 0;    // those before it are added
    std::uint64_t element = 0;  // those before it are added of this round, counted from the first that this node owns
  };
  std::map<UseId, SumProgress> sums_;  // by use
  std::set<GroupId> ready_;            // ready groups that are not taken
  std::uint32_t num_ready_ = 0;
  std::uint32_t num_published_ = 0;
};

}  // namespace rp
