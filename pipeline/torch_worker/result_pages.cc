#include "pipeline/torch_worker/result_pages.h"

#include <algorithm>
#include <cstring>

namespace rp {

void ResultPages::begin(std::size_t num_microbatches, std::size_t num_uses, std::size_t num_layers) {
  Page& page = pages_[++num_begun_ % kPages];
  page.num_microbatches = num_microbatches;
  page.num_uses = num_uses;
  page.num_layers = num_layers;
  // The page is larger than needed, so that a new one is allocated only if tasks become much
  // larger.
  if (page.bytes() > page.memory.bytes) page.memory = device_.make_page(std::max<std::size_t>(2 * page.bytes(), 4096));
  device_.clear(page.memory.device, page.bytes());
}

double* ResultPages::loss(std::size_t microbatch, std::size_t i) const {
  return reinterpret_cast<double*>(current().memory.device + microbatch * sizeof(LossRecord::values)) + i;
}

double* ResultPages::square_sum(std::size_t use) const {
  return reinterpret_cast<double*>(current().memory.device + current().square_sums_offset()) + use;
}

LayerTime& ResultPages::time(std::size_t layer) const {
  return reinterpret_cast<LayerTime*>(current().memory.device + current().times_offset())[layer];
}

std::int64_t* ResultPages::span(std::size_t microbatch, bool is_recompute) const {
  return reinterpret_cast<std::int64_t*>(current().memory.device + current().spans_offset()) + microbatch * 4 +
         (is_recompute ? 0 : 2);
}

void ResultPages::read(std::size_t number, TaskTotals& totals) const {
  const Page& page = pages_[number];
  for (std::size_t m = 0; m < totals.losses.size(); ++m) {
    LossRecord& record = totals.losses[m];
    std::memcpy(record.values.data(), page.memory.host + m * sizeof(record.values), record.num * sizeof(double));
  }
  const auto* const sums = reinterpret_cast<const double*>(page.memory.host + page.square_sums_offset());
  totals.square_sums.assign(sums, sums + page.num_uses);
  const auto* const times = reinterpret_cast<const LayerTime*>(page.memory.host + page.times_offset());
  totals.layer_times.assign(times, times + page.num_layers);
  const auto* const spans = reinterpret_cast<const std::int64_t*>(page.memory.host + page.spans_offset());
  const auto span_of = [&](const MicrobatchTime& time) {
    return spans + static_cast<std::size_t>(time.microbatch) * 4 + (time.is_recompute ? 0 : 2);
  };
  if (!totals.times.empty()) device_.note_past(span_of(totals.times.back())[1]);
  for (MicrobatchTime& time : totals.times) {
    time.begin_ns = device_.host_time(span_of(time)[0]);
    time.end_ns = device_.host_time(span_of(time)[1]);
  }
}

}  // namespace rp
