// pipeline/runtime.h
// Owns what the pipelines of a session share: one store, one order of slots, and the same workers.
//
// Owned by the Session. Every process has the descriptions of the pipelines; store and coordinator
// exist in one process only.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/coordinator.h"
#include "coordinator/schedule_report.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/store.h"
#include "pipeline/backend.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"

namespace rp {

class Runtime {
 public:
  // `settings`: as they hold for the run (RuntimeSettings::completed()). They must outlive the Runtime.
  // `network`: to the other nodes of the run; nullptr if there are none.
  Runtime(const RuntimeSettings& settings, std::unique_ptr<Backend> backend, int num_workers, NodeNetwork* network)
      : settings_(settings), backend_(std::move(backend)), num_workers_(num_workers), network_(network) {}

  // REQUIRES: create_store().
  [[nodiscard]] int num_workers_of_all_nodes() const {
    return network_ == nullptr ? num_workers_ : std::accumulate(workers_of_nodes_.begin(), workers_of_nodes_.end(), 0);
  }
  // Returns nullptr if there is one node.
  [[nodiscard]] NodeNetwork* network() { return network_; }
  [[nodiscard]] NodePlace place() const { return network_ != nullptr ? network_->place() : NodePlace{}; }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  // Returns the pipeline's number. The pipeline must outlive the run.
  int add(Pipeline::Impl* pipeline);
  [[nodiscard]] bool is_empty() const { return pipelines_.empty(); }
  [[nodiscard]] bool has(const Pipeline::Impl* pipeline) const;
  void clear() { pipelines_.clear(); }

  // In the coordinator, before create_store(): another process can go on after the death of this one. `remains`: of the
  // process before this one, which has died.
  void record_steps(std::optional<StoreRemains> remains);
  // In the coordinator: creates the store with the initial weights, or around the remains. Starts no thread.
  void create_store(const std::function<void(const LoadProgress&)>& tell);
  // In the coordinator, once its workers can start: if they connect to those of other nodes, waits until theirs can
  // start, too. A node that loads its weights for long would otherwise be given up by workers that wait for it.
  void wait_for_nodes();
  // In the coordinator, in place of create_store() and start_coordinator(): creates a store for one task only, from a
  // file, and returns its command. Throws rp::Error (kBadInput) if it is a task of another program.
  [[nodiscard]] Command create_task_store(const std::filesystem::path& file);
  // In the coordinator: must be called before the workers start. The arguments are
  // described in CoordinatorOptions.
  void start_coordinator(std::optional<FaultBoardEntry> board, std::function<void()> on_hang, OnSetAside on_set_aside,
                         TraceJournal* trace);
  // In the coordinator, after start_coordinator(), if record_steps() was called: continues after the last step of the
  // process before this one, or records that the training begins.
  void recover();
  [[nodiscard]] bool records_steps() const { return records_steps_; }
  // Abandons saves in progress, so that no thread waits for them any more.
  void give_up_saves();
  void end_coordinator();
  // Throws rp::Error (kUsage) if there are no weights that `what` could read or write.
  void check_has_weights(const char* what) const;
  // In the coordinator: prints what the backend reports of a successful run. REQUIRES: start_coordinator(), and
  // therefore a pipeline: clear() is called only after the run.
  void report_run() const;
  // In the coordinator: returns the times of the completed steps.
  [[nodiscard]] StepTimes step_times(int pipeline);

  // In a worker: throws rp::Error (kUserError) if this process describes other pipelines than the
  // coordinator.
  void compare_with(const Store& store) const;
  // In a worker: serves the store until the run ends.
  void serve(const WorkerSeat& seat);

  // Throws rp::Error (kUsage) if the gradients of no further round can be added before the pipeline's step().
  void check_room_for_gradients(int pipeline);

  // Returns true once, so that only one of the pipelines reports that its rounds are too small for the workers.
  [[nodiscard]] bool mark_few_microbatches_reported() { return !std::exchange(has_noted_few_, true); }

  // Throws rp::Error (kUsage) if start() was not called.
  [[nodiscard]] Coordinator& coordinator();
  [[nodiscard]] Coordinator* coordinator_if_started() { return coordinator_.get(); }
  // Returns the names of the buffers, by layer, for layers that have buffers. REQUIRES:
  // create_store().
  [[nodiscard]] const std::map<int, std::vector<std::string>>& buffer_names(int pipeline) const {
    return buffer_names_[pipeline];
  }
  // Returns whether weights, gradients and optimizer state are stored in files.
  [[nodiscard]] bool is_in_files() const { return settings_.params_on.has_value(); }
  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] const Store* store_if_created() const { return store_.get(); }
  // Returns the grain that the options request, or otherwise the faster one on this device.
  [[nodiscard]] RecomputeGrain recompute_grain(const PipelineOptions& options) const {
    return options.recompute_grain.value_or(backend_->recompute_grain());
  }

 private:
  [[nodiscard]] std::vector<PipelineCode> pipeline_code() const;
  [[nodiscard]] StoreSettings store_settings() const;
  [[nodiscard]] Catalogue lay_out() const;
  // Throws rp::Error (kUserError) if the nodes describe different runs, and kUsage for a run that
  // several nodes cannot share.
  void compare_with_nodes();
  void write_weights(const Catalogue& catalogue, const std::function<void(const LoadProgress&)>& tell);
  [[nodiscard]] std::uint64_t fingerprint_of_all() const;
  void warn_of_plan(int pipeline, const PlanSettings& settings) const;
  // Returns the user's plan, if there is one.
  [[nodiscard]] std::optional<Plan> plan_by_hand(int pipeline) const;
  [[nodiscard]] PlanSettings plan_settings(int pipeline) const;
  // Returns for each round of a step the node that computes it.
  [[nodiscard]] std::vector<int> nodes_of_rounds(int pipeline) const;
  // Describes the steps of a pipeline for a simulation.
  [[nodiscard]] StepSettings step_settings(int pipeline) const;

  const RuntimeSettings& settings_;
  const std::unique_ptr<Backend> backend_;
  const int num_workers_;
  NodeNetwork* const network_;
  std::vector<int> workers_of_nodes_;  // by node; set by compare_with_nodes()
  bool records_steps_ = false;
  std::optional<StoreRemains> remains_;  // until create_store() has taken them
  bool is_restarted_ = false;
  std::vector<Pipeline::Impl*> pipelines_;
  std::unique_ptr<Store> store_;
  std::vector<std::unique_ptr<ScheduleReport>> schedules_;  // by pipeline; filled by start_coordinator()
  std::unique_ptr<Coordinator> coordinator_;
  bool has_noted_few_ = false;
  // By pipeline and layer, for layers that have buffers.
  std::vector<std::map<int, std::vector<std::string>>> buffer_names_;
  std::vector<std::map<int, Tensors>> initial_buffers_;  // by pipeline; cleared by start_coordinator()
};

}  // namespace rp
