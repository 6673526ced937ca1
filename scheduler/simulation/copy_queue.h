// scheduler/simulation/copy_queue.h
// One direction of a GPU's link in a simulated run: one copy at a time, those that somebody waits for first. Virtual
// time, ms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

namespace rp {

enum class CopyKind : std::uint8_t { kInput, kWeights, kOutput, kGradient };

struct SimulatedCopy {
  CopyKind kind = CopyKind::kInput;
  std::int64_t slot = 0;
  int microbatch = -1;       // -1: of the whole task
  int layer = -1;            // of weights and gradients
  std::size_t read = 0;      // of inputs: which of RunStage::reads
  bool is_last_part = true;  // of what its task or microbatch waits for
  double bytes = 0;          // that are left

  [[nodiscard]] bool is_upload() const { return kind == CopyKind::kInput || kind == CopyKind::kWeights; }
  [[nodiscard]] bool is_bulk() const { return kind == CopyKind::kWeights || kind == CopyKind::kGradient; }
};

class CopyQueue {
 public:
  // `piece`: in bytes, after which a bulk copy may be interrupted.
  explicit CopyQueue(double piece) : piece_(piece) {}

  void add_urgent(const SimulatedCopy& copy) { urgent_.push_back(copy); }
  // Goes when no urgent copy waits.
  void add_bulk(const SimulatedCopy& copy) { bulk_.push_back(copy); }

  // Takes the next copy if none runs. `bulk_waits`: only an urgent one. True if one began.
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

  // Nothing runs and nothing waits.
  [[nodiscard]] bool is_empty() const { return !is_active_ && urgent_.empty() && bulk_.empty(); }
  // Whether start() and next_event() look at `bulk_waits`.
  [[nodiscard]] bool asks_for_others() const { return is_active_ ? is_bulk_ : urgent_.empty() && !bulk_.empty(); }

  // What runs goes on at this rate, in bytes per ms.
  void set_rate(double rate) { rate_ = rate; }
  // When it ends or is interrupted if nothing changes.
  [[nodiscard]] double next_event(double now, bool bulk_waits) {
    if (!is_active_) return std::numeric_limits<double>::infinity();
    pause_at_ = pause_at(bulk_waits);
    return now + (active_.bytes - pause_at_) / rate_;
  }
  void advance(double ms) {
    if (is_active_ && ms > 0) active_.bytes -= std::min(active_.bytes, rate_ * ms);
  }

  struct Stopped {
    SimulatedCopy copy;  // nothing left, or its rest, which waits in front of the others of its kind
    bool has_ended = false;
    double start = 0;
    double bytes = 0;  // since then
  };
  // At the moment that next_event() gave.
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
  // How much is left of what runs when it is interrupted for others; 0 if it is not.
  [[nodiscard]] double pause_at(bool bulk_waits) const {
    if (!is_bulk_ || (!bulk_waits && urgent_.empty())) return 0;
    constexpr double kRounding = 1e-9;  // of a piece: an interruption at a border is one at that border
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
  double pause_at_ = 0;  // what is left at the next event
};

}  // namespace rp
