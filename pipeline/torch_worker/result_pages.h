// pipeline/torch_worker/result_pages.h
// What the device finds out about a task: losses, square sums of gradients, times. The device writes them into a page
// of the task's; the host reads them when the task is done.
//
// Owned by the TorchStageExecutor. All calls but read() are the computing thread's; read() may be called by another
// one, for a page that is downloaded. A page is cleared for a further task in the compute stream, which does not come
// after its download: a worker has kPages tasks at once, so the task before on the same page was read by the host
// before the further one can begin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/run_depth.h"
#include "hoststore/round_table.h"
#include "pipeline/torch_worker/torch_device.h"
#include "worker/executor/stage_executor.h"

namespace rp {

class ResultPages {
 public:
  static constexpr std::size_t kPages = kTasksAhead + 2;  // tasks that a worker has at once (TaskFlow)

  // The device must outlive it.
  explicit ResultPages(TorchDevice& device) : device_(device) {}

  // A page for the next task, of zeros. Throws rp::Error (kNoResource).
  void begin(std::size_t num_microbatches, std::size_t num_uses, std::size_t num_layers);

  // Addresses in the device's memory.
  [[nodiscard]] double* loss(std::size_t microbatch, std::size_t i) const;
  [[nodiscard]] double* square_sum(std::size_t use) const;
  [[nodiscard]] LayerTime& time(std::size_t layer) const;
  // Begin and end of a microbatch's computation or recompute: two numbers.
  [[nodiscard]] std::int64_t* span(std::size_t microbatch, bool is_recompute) const;

  // The page is written: its number.
  [[nodiscard]] std::size_t end() const { return num_begun_ % kPages; }

  // The host may read it once the stream of outputs' downloads has done what is enqueued. REQUIRES: that stream comes
  // after what compute was given before end().
  void download(std::size_t page) { device_.download(pages_[page].memory); }

  // Fills in what is in the page: as many losses as totals.losses say that there are, and the times of totals.times.
  void read(std::size_t page, TaskTotals& totals) const;

 private:
  struct Page {
    ResultPage memory;
    std::size_t num_microbatches = 0;
    std::size_t num_uses = 0;
    std::size_t num_layers = 0;
    [[nodiscard]] std::size_t square_sums_offset() const { return num_microbatches * sizeof(LossRecord::values); }
    [[nodiscard]] std::size_t times_offset() const { return square_sums_offset() + num_uses * sizeof(double); }
    [[nodiscard]] std::size_t spans_offset() const { return times_offset() + num_layers * sizeof(LayerTime); }
    [[nodiscard]] std::size_t bytes() const { return spans_offset() + num_microbatches * 4 * sizeof(std::int64_t); }
  };
  [[nodiscard]] const Page& current() const { return pages_[num_begun_ % kPages]; }

  TorchDevice& device_;
  std::size_t num_begun_ = 0;
  std::array<Page, kPages> pages_;
};

}  // namespace rp
