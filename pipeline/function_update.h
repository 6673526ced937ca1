// pipeline/function_update.h
// Steps by a function of the user's: the parameters that it works on, as leaves over the masters in the host store.
//
// Owned by the pipeline. The Store must outlive it. run() is called by the updates thread, everything else by the
// user's, and only while no step with a function is in flight.
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

  // The same leaves at each call, over the masters of `version`, the newest one.
  [[nodiscard]] const std::vector<NamedParameter>& parameters(std::uint64_t version);

  // Makes `version` of masters and working copies by `function`; if the step is skipped, of those of the version
  // before. Throws what the function throws, and rp::Error (kUsage) if it puts a parameter elsewhere.
  void run(std::uint64_t version, bool skipped, const GradientWriter& write_gradient,
           const std::function<void()>& function);

 private:
  struct Leaf {
    const TensorRecord* record = nullptr;
    at::Tensor gradient;  // view of its weight group's
  };
  [[nodiscard]] const WeightGroupRecord& group_of(std::uint32_t group) const {
    return store_.catalogue().weight_groups()[group];
  }
  void allocate_gradients();
  void copy_masters(std::uint64_t version);
  void point_leaves_at(std::uint64_t version);
  void write_working_copies(std::uint64_t version);

  Store& store_;
  const std::vector<std::uint32_t> groups_;  // trained ones
  std::vector<at::Tensor> gradients_;        // by group, fp32, from the first step on
  std::vector<Leaf> leaves_;
  std::vector<NamedParameter> parameters_;  // of the leaves
};

}  // namespace rp
