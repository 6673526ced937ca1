// pipeline/pipeline_impl.h
// What a Pipeline is made of: the description in every process, store and coordinator in one of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/coordinator.h"
#include "hoststore/store.h"
#include "pipeline/session_impl.h"
#include "roundpipe/pipeline.h"
#include "worker/worker.h"

namespace rp {

class Pipeline::Impl {
 public:
  Impl(Session::Impl& session, Model model, Loss loss, PipelineOptions options);
  ~Impl();

  // Coordinator: the store with the initial weights, not yet any thread.
  void create_store();
  // Coordinator: before the workers.
  void start_coordinator();
  void end_coordinator();
  // Worker: serves the store until the run ends.
  void serve(Store& store, int worker, std::optional<FaultBoardEntry> board);
  // Worker: throws if this process describes another model than the coordinator.
  void compare_with(const Store& store) const;

  // Throws rp::Error if start() was not called.
  [[nodiscard]] Coordinator& coordinator();
  [[nodiscard]] Coordinator* coordinator_if_started() { return coordinator_.get(); }
  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] at::ScalarType dtype() const { return model_.dtype(); }
  [[nodiscard]] const PipelineOptions& options() const { return options_; }

  RoundResult forward_backward(const Tensors& inputs, const Tensors& arguments);
  StepResult step(const AdamW& rule, const StepOptions& options);
  // With the working weights of `steps_ago` steps ago, as far as the store keeps them.
  [[nodiscard]] std::vector<ParameterState> parameters(std::uint64_t steps_ago = 0);
  [[nodiscard]] MemoryPlan memory_plan() const;
  [[nodiscard]] std::string plan_text();

 private:
  void write_initial_weights();
  [[nodiscard]] Plan first_plan() const;
  [[nodiscard]] std::uint64_t max_stage_bytes() const;

  Session::Impl& session_;
  const Model model_;
  const Loss loss_;
  const PipelineOptions options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
};

struct RoundResult::State {
  Pipeline::Impl* pipeline = nullptr;
  std::shared_ptr<RoundOutcome> outcome;
};

struct StepResult::State {
  Pipeline::Impl* pipeline = nullptr;
  std::shared_ptr<StepOutcome> outcome;
};

}  // namespace rp
