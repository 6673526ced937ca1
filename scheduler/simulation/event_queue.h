// scheduler/simulation/event_queue.h
// Orders what will happen in a simulated run at times that are known when it begins. Virtual time, in
// ms.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "scheduler/simulation/copy_queue.h"
#include "scheduler/simulation/machine.h"
#include "scheduler/simulation/simulated_network.h"

namespace rp {

struct TimedEvent {
  enum class Kind : std::uint8_t { kComputed, kCopied, kMoved };

  double time = 0;
  Kind kind = Kind::kComputed;
  int gpu = 0;                 // kComputed, kCopied
  SimulatedCopy copy{};        // kCopied: it has arrived
  NetworkTransfer transfer{};  // kMoved: it has arrived
  std::int64_t number = 0;     // set by the queue
};

class EventQueue {
 public:
  void add(TimedEvent event) {
    event.number = num_added_++;
    events_.push(event);
  }
  // Returns the time of the next event; infinity if there is none.
  [[nodiscard]] double next_time() const { return events_.empty() ? kUnlimited : events_.top().time; }
  // Removes and returns the next event. Events of the same time come in the order in which they were
  // added. REQUIRES: there is one.
  TimedEvent take() {
    const TimedEvent event = events_.top();
    events_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const TimedEvent& a, const TimedEvent& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  std::priority_queue<TimedEvent, std::vector<TimedEvent>, Later> events_;
  std::int64_t num_added_ = 0;
};

}  // namespace rp
