// scheduler/simulation/copy_queue.h
// Orders the copies of one direction of a GPU's link in a simulated run. It runs one copy at a time;
// urgent copies go before bulk copies. Virtual time, in ms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

namespace rp {

enum class CopyKind : std::uint8_t { kInput, kWeights, kOutput, kGradient };
inline constexpr std::size_t kNumCopyKinds = 4;

struct SimulatedCopy {
  CopyKind kind = CopyKind::kInput;
  std::int64_t slot = 0;
  int microbatch = -1;       // -1: the whole task
  int layer = -1;            // of weights and gradients
  std::size_t read = 0;      // of inputs: index into RunStage::reads
  bool is_last_part = true;  // the last copy that its task or microbatch waits for
  double bytes = 0;          // that are left to copy

  [[nodiscard]] bool is_upload() const { return kind == CopyKind::kInput || kind == CopyKind::kWeights; }
  [[nodiscard]] bool is_bulk() const { return kind == CopyKind::kWeights || kind == CopyKind::kGradient; }
};

class CopyQueue {
 public:
  // `piece`: TransferPolicy::piece.
  explicit CopyQueue(double piece) : piece_(piece) {}

  void add_urgent(const SimulatedCopy& copy) { urgent_.push_back(copy); }
  // Adds a copy that starts only when no urgent copy waits.
  void add_bulk(const SimulatedCopy& copy) { bulk_.push_back(copy); }

  // Starts the next copy if none runs. `bulk_waits`: bulk copies may not start. Returns true if a
  // copy started.
  bool start(double now, bool bulk_waits) {
    if (is_active_ || (urgent_.empty() && (bulk_.empty() || bulk_waits))) return false;
    auto& queue = urgent_.empty() ? bulk_ : urgent_;
    is_bulk_ = urgent_.empty();
    active_ = queue.front();
    queue.pop_front();
    is_active_ = true;
    start_ = now;
    start_bytes_ = active_.bytes;
    return true;
  }

  // True if no copy runs or waits.
  [[nodiscard]] bool is_empty() const { return !is_active_ && urgent_.empty() && bulk_.empty(); }
  // True if the results of start() and next_event() depend on `bulk_waits`.
  [[nodiscard]] bool asks_for_others() const { return is_active_ ? is_bulk_ : urgent_.empty() && !bulk_.empty(); }

  // Sets the rate of the running copy, in bytes per ms.
  void set_rate(double rate) { rate_ = rate; }
  // Returns when the running copy ends or is interrupted if nothing changes; infinity if none runs.
  [[nodiscard]] double next_event(double now, bool bulk_waits) {
    if (!is_active_) return std::numeric_limits<double>::infinity();
    pause_at_ = pause_at(bulk_waits);
    return now + (active_.bytes - pause_at_) / rate_;
  }
  void advance(double ms) {
    if (is_active_ && ms > 0) active_.bytes -= std::min(active_.bytes, rate_ * ms);
  }

  struct Stopped {
    SimulatedCopy copy;  // ended, or interrupted: then its rest waits in front of the other bulk copies
    bool has_ended = false;
    double start = 0;
    double bytes = 0;  // copied since `start`
  };
  // Ends or interrupts the running copy. Call at the time that next_event() returned.
  Stopped stop() {
    active_.bytes = pause_at_;
    is_active_ = false;
    const bool has_ended = active_.bytes == 0;
    if (!has_ended) bulk_.push_front(active_);
    return {.copy = active_, .has_ended = has_ended, .start = start_, .bytes = start_bytes_ - active_.bytes};
  }

  [[nodiscard]] bool is_active() const { return is_active_; }
  [[nodiscard]] bool has_urgent() const { return !urgent_.empty() || (is_active_ && !is_bulk_); }
  [[nodiscard]] const SimulatedCopy& active() const { return active_; }

 private:
  // Returns how many bytes of the running copy will be left when it is interrupted for others; 0 if
  // it is not interrupted.
  [[nodiscard]] double pause_at(bool bulk_waits) const {
    if (!is_bulk_ || (!bulk_waits && urgent_.empty())) return 0;
    // In pieces. A copy that is at the border of a piece, up to rounding, is interrupted there and
    // not a piece later.
    constexpr double kRounding = 1e-9;
    return std::max(0.0, std::ceil(active_.bytes / piece_ - 1 - kRounding) * piece_);
  }

  double piece_;
  std::deque<SimulatedCopy> urgent_, bulk_;
  SimulatedCopy active_;
  bool is_active_ = false;
  bool is_bulk_ = false;
  double start_ = 0;
  double start_bytes_ = 0;
  double rate_ = 0;
  double pause_at_ = 0;  // bytes left at the next event
};

}  // namespace rp
