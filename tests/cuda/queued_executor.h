// tests/cuda/queued_executor.h
// The toy model's executor on a device that computes asynchronously. Each of its calls becomes a
// host function in the compute stream, with all arguments of the call. Its results are in a page of
// the device's memory, which is copied to the host as a GPU's is.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/run_depth.h"
#include "cuda/cuda_device.h"
#include "cuda/mirrored_memory.h"
#include "tests/coordinator/toy_model.h"

namespace rp::test {

class QueuedExecutor : public StageExecutor {
  // In the device's memory: the results of the stream for a task.
  struct Page {
    static constexpr std::size_t kMax = 64;
    std::size_t task = 0;  // the task's number, set when all of it is computed
    std::size_t num_losses = 0;
    std::size_t num_uses = 0;
    std::size_t num_layers = 0;
    std::array<LossRecord, kMax> losses{};
    std::array<double, kMax> square_sums{};
    std::array<LayerTime, kMax> layer_times{};
    std::array<LayerMemory, kMax> layer_memory{};
  };

 public:
  static constexpr std::uint64_t kPageBytes = sizeof(Page);  // size of the copy of the results

  // All arguments must outlive it. REQUIRES: the device is drained before it is destroyed.
  QueuedExecutor(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device);

  // Launches each of its kernels once.
  [[nodiscard]] bool warm_up(Device& device) override;
  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  // The outputs' memory belongs to the device from the start, as a GPU's would; the stream fills
  // it.
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;
  void download(const TaskTotals& totals) override;
  // Ends the test unless the results are exactly those of this task, in whatever order streams run.
  void collect(TaskTotals& totals) override;

  std::function<void()> after_warm_up{};  // called when the warm-up is enqueued
  // Returns the number of kernels that were loaded after the warm-up.
  [[nodiscard]] std::size_t num_loaded_late() const;

 private:
  static constexpr std::size_t kPages = kTasksAhead + 2;  // as in ResultPages

  // Enqueues the function as a kernel of this name.
  void enqueue(const std::string& kernel, std::function<void()> function);
  // Returns the page of the task that is being enqueued.
  [[nodiscard]] Page* page() const { return reinterpret_cast<Page*>(pages_[num_begun_ % kPages]->data()); }

  const int num_elements_;
  ToyExecutor inner_;  // used by the stream
  CudaDevice& device_;
  std::array<std::optional<MirroredMemory>, kPages> pages_;
  std::size_t num_begun_ = 0;  // tasks
  std::size_t num_loaded_early_ = 0;
  std::list<std::function<void()>> calls_;  // all that were enqueued; a stream that is given up runs none
};

}  // namespace rp::test
