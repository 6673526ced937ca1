// pipeline/function_update.h
// Runs steps by a function of the user. The function works on leaf tensors over the masters in the
// host store.
//
// Owned by the pipeline. The Store must outlive it. The updates thread calls run(); the user's
// thread calls all other methods, and only while no step with a function is in flight.
#pragma once

#include <functional>
#include <vector>

#include "coordinator/updates/step_request.h"
#include "hoststore/store.h"
#include "roundpipe/layer.h"

namespace rp {

class FunctionUpdate {
 public:
  FunctionUpdate(Store& store, int pipeline);

  // Returns the same leaves at each call, over the masters of `version`, which is the newest.
  [[nodiscard]] const std::vector<NamedParameter>& parameters(Version version);

  // Runs `function` to make `version` of the masters and working copies. If the step is skipped,
  // makes it from the previous version instead. Throws what the function throws, and rp::Error
  // (kUsage) if the function replaces the memory of a parameter.
  void run(Version version, bool skipped, const GradientWriter& write_gradient, const std::function<void()>& function);

 private:
  struct Leaf {
    const TensorRecord* record = nullptr;
    at::Tensor gradient;  // a view of the gradient of its weight group
  };
  [[nodiscard]] const WeightGroupRecord& group_of(GroupId group) const {
    return store_.catalogue().weight_groups()[group];
  }
  void allocate_gradients();
  void copy_masters(Version version);
  void point_leaves_at(Version version);
  void write_working_copies(Version version);

  Store& store_;
  const std::vector<GroupId> groups_;  // the trained groups that are no corrections
  std::vector<at::Tensor> gradients_;  // by group, fp32; allocated by the first step
  std::vector<Leaf> leaves_;
  std::vector<NamedParameter> parameters_;  // the leaves with their names
};

}  // namespace rp
