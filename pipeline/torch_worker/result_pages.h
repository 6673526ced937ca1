// pipeline/torch_worker/result_pages.h
// Holds the results that the device computes for a task in addition to its outputs: losses, square
// sums of gradients, and times. The device writes them to a page of the task, and the host reads
// the page when the task is done.
//
// Owned by the TorchStageExecutor. The computing thread calls all methods except read(), which any
// thread may call for a downloaded page. A page is cleared for its next task on the compute stream,
// which does not wait for the page's download. This is safe because a worker has only kPages tasks
// at a time: before it can begin a task, the host has read the results of the previous task on the
// same page.
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
  static constexpr std::size_t kPages = kTasksAhead + 2;  // tasks that a worker has at a time (TaskFlow)

  // The device must outlive it.
  explicit ResultPages(TorchDevice& device) : device_(device) {}

  // Takes a page for the next task and fills it with zeros. Throws rp::Error (kNoResource).
  void begin(std::size_t num_microbatches, std::size_t num_uses, std::size_t num_layers);

  // These return addresses in the device's memory.
  [[nodiscard]] double* loss(std::size_t microbatch, std::size_t i) const;
  [[nodiscard]] double* square_sum(std::size_t use) const;
  [[nodiscard]] LayerTime& time(std::size_t layer) const;
  // Returns the place of two numbers: begin and end of a microbatch's computation or recompute.
  [[nodiscard]] std::int64_t* span(std::size_t microbatch, bool is_recompute) const;

  // Ends the use of the current page, and returns its number.
  [[nodiscard]] std::size_t end() const { return num_begun_ % kPages; }

  // Enqueues the download of a page. The host may read the page once the output download stream has
  // done what is enqueued. REQUIRES: that stream waits for everything that was enqueued on the
  // compute stream before end().
  void download(std::size_t page) { device_.download(pages_[page].memory); }

  // Fills in the results in the page: as many losses as totals.losses says that there are, and the
  // times of totals.times.
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
