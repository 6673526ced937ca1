#include "scheduler/simulation/run_record.h"

#include <algorithm>
#include <limits>

namespace rp {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

}  // namespace

const GpuMemorySample* RunResult::peak_of(int gpu) const {
  const auto index = static_cast<std::size_t>(gpu);
  if (index >= gpu_memory.size() || gpu_memory[index].empty()) return nullptr;
  return &*std::max_element(
      gpu_memory[index].begin(), gpu_memory[index].end(),
      [](const GpuMemorySample& a, const GpuMemorySample& b) { return a.bytes.total() < b.bytes.total(); });
}

// Infinity until the time is known.
double RunRecord::count_from() const {
  const auto warm = static_cast<std::size_t>(length_.warm_up);
  if (warm == 0) return 0;
  return result_.step_ends.size() < warm ? kUnknown : result_.step_ends[warm - 1];
}

double RunRecord::count_to() const {
  const auto last = static_cast<std::size_t>(length_.warm_up + length_.steps);
  return result_.step_ends.size() < last ? kUnknown : result_.step_ends[last - 1];
}

double RunRecord::counted(double start, double end) const {
  return std::max(0.0, std::min(end, count_to()) - std::max(start, count_from()));
}

void RunRecord::idle(double start, double end, const Missing& missing) {
  double from = start;
  const auto until = [&](double time, double& part) {
    const double border = std::clamp(time, from, end);
    part += counted(from, border);
    from = border;
  };
  GpuTime& times = result_.gpus;
  const double last = std::max({start, missing.gradient_buffer, missing.weights_there, missing.input_there});
  if (last == missing.gradient_buffer) {
    until(end, times.gradients);
  } else if (last == missing.input_there) {
    until(missing.input_made, times.bubble);
    until(end, times.inputs);
  } else if (last == missing.weights_there) {
    until(missing.gradient_made, times.bubble);
    until(missing.gradient_committed, times.gradients);
    until(missing.weights_known, missing.gradient_committed > 0 ? times.updates : times.bubble);
    until(end, times.weights);
  } else {
    until(end, times.bubble);
  }
}

void RunRecord::span(const RunSpan& span) {
  const bool at_once = span.start == span.end;
  if (at_once ? span.start < count_from() || span.start >= count_to() : counted(span.start, span.end) == 0) return;
  const double bytes = span.bytes * (at_once ? 1 : counted(span.start, span.end) / (span.end - span.start));
  if (span.kind == SpanKind::kUploadInput || span.kind == SpanKind::kUploadWeights) result_.uploaded_bytes += bytes;
  if (span.kind == SpanKind::kDownloadOutput || span.kind == SpanKind::kDownloadGradient)
    result_.downloaded_bytes += bytes;
  if (is_sent(span.kind)) {
    result_.sent_bytes += bytes;
    result_.sending_ms += counted(span.start, span.end);
  }
  if (is_received(span.kind)) {
    result_.received_bytes += bytes;
    result_.receiving_ms += counted(span.start, span.end);
  }
  if (length_.record) result_.spans.push_back(span);
}

void RunRecord::activations(double now, double more_bytes) {
  activation_bytes_ += more_bytes;
  result_.peak_activation_bytes = std::max(result_.peak_activation_bytes, activation_bytes_);
  if (length_.record) result_.memory.push_back({now, activation_bytes_});
}

void RunRecord::end_step(double now) { result_.step_ends.push_back(now); }

RunResult RunRecord::result() {
  const double steps = length_.steps;
  RunResult result = result_;
  result.step_ms = (count_to() - count_from()) / steps;
  for (double* part :
       {&result.gpus.busy, &result.gpus.inputs, &result.gpus.weights, &result.gpus.gradients, &result.gpus.updates,
        &result.gpus.bubble, &result.update_ms, &result.uploaded_bytes, &result.downloaded_bytes, &result.sent_bytes,
        &result.received_bytes, &result.sending_ms, &result.receiving_ms}) {
    *part /= steps;
  }
  return result;
}

}  // namespace rp
