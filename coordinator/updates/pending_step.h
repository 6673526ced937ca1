// coordinator/updates/pending_step.h
// A step from the first task of its rounds to its last updated weight group: which groups' gradients are final, what is
// known of them, and what the step does to each group.
//
// A group is open while a task that uses it is not closed. Once step() was called and it is not open any more, it is
// ready, for good: nobody but the step uses its gradient, and nobody reads the copy that the update overwrites. Groups
// are those of one pipeline that are trained.
//
// Owned by the Updates and guarded by their mutex. The Catalogue and the list of groups must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "coordinator/updates/step_request.h"
#include "hoststore/catalogue.h"
#include "optimizer/update.h"

namespace rp {

// What the commit of a task said of the gradient of a use.
struct CommittedGradient {
  std::uint32_t use = 0;
  std::uint64_t released_after = 0;  // what `gradient_released` of the use becomes when it is given back
  std::uint64_t checksum = 0;        // in a run that checks its consistency
};

class PendingStep {
 public:
  // `scales_loss`: the step is skipped on overflow.
  PendingStep(const Catalogue& catalogue, std::uint32_t pipeline, std::span<const std::uint32_t> groups,
              bool scales_loss);

  // A task that has this use was accepted; it is committed, and its gradient added where there is a sum. Closing
  // returns whether the use's group became ready. REQUIRES: opened before it is closed, and before call().
  void open(std::uint32_t use) { ++open_[group_of(use)]; }
  [[nodiscard]] bool close(std::uint32_t use);

  // step() was called.
  void call(std::uint64_t used_version, StepRequest request);
  [[nodiscard]] bool is_called() const { return is_called_; }

  // The gradient of a use, of the step's last round so far.
  void set_gradient(const CommittedGradient& gradient) { gradients_[gradient.use] = gradient; }
  // Of all uses of a group.
  [[nodiscard]] std::vector<CommittedGradient> gradients_of(std::uint32_t group) const;
  // Returns true for the first gradient of a use, which begins its sum.
  [[nodiscard]] bool mark_summed(std::uint32_t use) { return summed_.insert(use).second; }

  // Whether all groups must be ready before the first one is updated.
  [[nodiscard]] bool is_barrier() const;
  // Whether there is something to update now.
  [[nodiscard]] bool can_update() const;
  // Ever.
  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  // The first ready group in layer order that was not taken. REQUIRES: can_update(); the pipeline has groups.
  [[nodiscard]] std::uint32_t take_ready();
  // One group more is updated. Returns whether all are.
  [[nodiscard]] bool count_updated() { return ++num_updated_ == groups_.size(); }

  // Of a group's gradient.
  void set_square_sum(std::uint32_t group, double sum) { square_sums_[group] = sum; }
  // The outcome is known: norm, layers with a gradient that is not finite, whether the step is skipped. REQUIRES: all
  // square sums are there; `loss_scale` is that of used_version().
  void finish_norm(double loss_scale);
  [[nodiscard]] bool norm_is_known() const { return outcome_->norm_known; }

  // What clipping and loss scaling do to a gradient. REQUIRES: the norm is known if the step is a barrier; else no loss
  // scale.
  [[nodiscard]] UpdateStep scaling() const;
  // What is done to the parts of a group by the `number`th step that is not skipped; nothing if this one is. REQUIRES:
  // as scaling().
  [[nodiscard]] std::vector<UpdateSpan> rules_of(std::uint32_t group, std::uint64_t number) const;

  [[nodiscard]] std::uint64_t used_version() const { return used_version_; }
  // Instead of rules; may be empty.
  [[nodiscard]] const WholeUpdate& function() const { return request_.function; }
  [[nodiscard]] const std::shared_ptr<StepOutcome>& outcome() const { return outcome_; }

 private:
  [[nodiscard]] std::uint32_t group_of(std::uint32_t use) const { return catalogue_.uses()[use].group; }
  // Whether a gradient that is not finite skips the step.
  [[nodiscard]] bool may_be_skipped() const;

  const Catalogue& catalogue_;
  const std::uint32_t first_layer_;  // the catalogue's number of layer 0
  const std::span<const std::uint32_t> groups_;
  const bool scales_loss_;
  bool is_called_ = false;
  std::uint64_t used_version_ = 0;
  StepRequest request_;
  const std::shared_ptr<StepOutcome> outcome_ = std::make_shared<StepOutcome>();
  std::map<std::uint32_t, int> open_;                     // by group
  std::map<std::uint32_t, double> square_sums_;           // by group
  std::map<std::uint32_t, CommittedGradient> gradients_;  // by use
  std::set<std::uint32_t> summed_;                        // uses whose sum has begun
  std::set<std::uint32_t> ready_;                         // groups, not taken
  std::uint32_t num_ready_ = 0;
  std::uint32_t num_updated_ = 0;
};

}  // namespace rp
