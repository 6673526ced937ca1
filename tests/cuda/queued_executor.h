// tests/cuda/queued_executor.h
// The toy model's executor on a device that computes later than it is told to: each of its calls becomes a host function in the
// compute stream, with all that it was given at the call.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "cuda/cuda_device.h"
#include "tests/coordinator/toy_model.h"

namespace rp::test {

class QueuedExecutor : public StageExecutor {
 public:
  // All must outlive it; the device is drained before it ends.
  QueuedExecutor(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device);

  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  // The outputs' memory is the device's from the start, as a GPU's would be; the stream fills it.
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;
  void collect(TaskTotals& totals) override;

 private:
  void enqueue(std::function<void()> function);

  const int num_elements_;
  ToyExecutor inner_;  // the stream's
  CudaDevice& device_;
  // What the stream finds out about a task, in the order of the tasks.
  struct Found {
    std::vector<LossRecord> losses;
    TaskTotals totals;
  };
  std::shared_ptr<Found> found_;                            // of the task that is being enqueued
  std::map<const TaskTotals*, std::shared_ptr<Found>> all_;  // until collect()
  Mutex mutex_;
  std::list<std::function<void()>> calls_;  // all that were enqueued: a stream that is given up runs none
};

}  // namespace rp::test
