// coordinator/updates/pending_step.h
// Tracks a step from the first task of its rounds to its last updated weight group: which groups
// have final gradients, what is known of these, and what the step does to each group.
//
// The gradients of a step are collected until step() is called. A group is open while a task that uses it is not
// closed. It is ready, permanently, once step() was called and it is not open any more: only the step uses its gradient
// then, and no task reads the copy that the update overwrites. Groups are the trained weight groups of one pipeline.
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

  // open(): a task that has this use was accepted. close(): the task is committed, and its gradient
  // is added if there is a sum. close() returns true if the use's group became ready. REQUIRES: a
  // task is opened before it is closed and before call().
  void open(UseId use) { ++open_[group_of(use)]; }
  [[nodiscard]] bool close(UseId use);

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
  // Returns true for the first gradient of a use, which begins its sum.
  [[nodiscard]] bool mark_summed(UseId use) { return summed_.insert(use).second; }

  // Returns true if all groups must be ready, and the norm known, before the first one is updated.
  [[nodiscard]] bool is_barrier() const;
  // Returns true if a group can be updated now.
  [[nodiscard]] bool can_update() const;
  // Returns the number of groups that have become ready so far, including those that were taken.
  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  // Removes and returns the first ready group, in layer order. REQUIRES: can_update(); the pipeline
  // has groups.
  [[nodiscard]] GroupId take_ready();
  // Counts an updated group. Returns true if all groups are updated.
  [[nodiscard]] bool count_updated() { return ++num_updated_ == groups_.size(); }

  // Stores the sum of squares of a group's gradient.
  void set_square_sum(GroupId group, double sum) { square_sums_[group] = sum; }
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
  std::map<GroupId, int> open_;                   // by group
  std::map<GroupId, double> square_sums_;         // by group
  std::map<UseId, CommittedGradient> gradients_;  // by use
  std::set<UseId> summed_;                        // uses whose sum has begun
  std::set<GroupId> ready_;                       // ready groups that are not taken
  std::uint32_t num_ready_ = 0;
  std::uint32_t num_updated_ = 0;
};

}  // namespace rp
