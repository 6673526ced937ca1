#include "device/copy_engine.h"

#include <algorithm>

namespace rp {

CopyEngine::CopyEngine(double bytes_per_ns, std::vector<std::int64_t> latency_ns, bool first_stream_first)
    : bytes_per_ns_(bytes_per_ns), first_stream_first_(first_stream_first), queues_(latency_ns.size()) {
  for (std::size_t i = 0; i < queues_.size(); ++i) queues_[i].latency_ns = latency_ns[i];
}

void CopyEngine::enqueue_copy(int stream, const Copy& copy, std::int64_t now_ns) {
  settle(now_ns);
  Queue& queue = queues_[stream];
  const double length_ns = bytes_per_ns_ > 0 ? static_cast<double>(copy.bytes) / bytes_per_ns_ : 0;
  const auto link_ns = static_cast<std::int64_t>(length_ns);
  queue.operations.push_back({.enqueued_ns = now_ns, .link_ns = link_ns, .copy = copy, .mark = {}});
  queue.enqueued_link_ns += link_ns;
  queue.last_link_ns = link_ns;
}

void CopyEngine::enqueue_mark(const Mark& mark, std::int64_t now_ns) {
  settle(now_ns);
  Queue& queue = queues_[mark.stream];
  queue.operations.push_back({.is_mark = true, .enqueued_ns = now_ns, .copy = {}, .mark = mark});
  queue.mark_sums.push_back(queue.enqueued_link_ns + (mark.is_early ? -queue.last_link_ns : queue.latency_ns));
  take_marks(queue);
}

std::optional<CopyEngine::Mark> CopyEngine::pop_due(std::int64_t now_ns) {
  settle(now_ns);
  for (Queue& queue : queues_) {
    if (queue.due.empty() || queue.due.front().due_ns > now_ns) continue;
    const Mark mark = queue.due.front().mark;
    queue.due.pop_front();
    return mark;
  }
  return std::nullopt;
}

std::int64_t CopyEngine::next_due_ns() const {
  std::int64_t next_ns = INT64_MAX;
  for (const Queue& queue : queues_) {
    if (!queue.due.empty()) {
      next_ns = std::min(next_ns, queue.due.front().due_ns);
    } else if (!queue.mark_sums.empty()) {
      const std::int64_t start_ns = std::max(free_ns_, queue.operations.front().enqueued_ns);
      next_ns = std::min(next_ns, start_ns + queue.mark_sums.front() - queue.settled_link_ns);
    }
  }
  return next_ns;
}

// Fixes the times of all copies that have begun at `now_ns`. An urgent copy may still overtake
// those that begin later.
void CopyEngine::settle(std::int64_t now_ns) {
  while (true) {
    Queue* next = nullptr;
    std::int64_t next_key_ns = INT64_MAX;
    for (Queue& queue : queues_) {
      take_marks(queue);
      if (queue.operations.empty()) continue;
      const std::int64_t enqueued_ns = queue.operations.front().enqueued_ns;
      const std::int64_t key_ns = first_stream_first_ ? std::max(free_ns_, enqueued_ns) : enqueued_ns;
      if (key_ns < next_key_ns) {  // the first stream wins a tie
        next = &queue;
        next_key_ns = key_ns;
      }
    }
    if (next == nullptr) return;
    const std::int64_t next_ns = std::max(free_ns_, next->operations.front().enqueued_ns);
    if (next_ns > now_ns) return;
    const Operation copy = next->operations.front();
    next->operations.pop_front();
    next->start_ns = next_ns;
    free_ns_ = next_ns + copy.link_ns;
    next->settled_link_ns += copy.link_ns;
    next->end_ns = std::max(next->end_ns, free_ns_ + next->latency_ns);
    touch(copy.copy, {.enqueued_ns = copy.enqueued_ns, .end_ns = next->end_ns});
  }
}

void CopyEngine::touch(const Copy& copy, const CopyTimes& times) {
  if (copy.bytes == 0) return;
  touched_.erase(touched_.lower_bound(copy.memory), touched_.lower_bound(copy.memory + copy.bytes));
  touched_[copy.memory] = {.bytes = copy.bytes, .times = times};
}

CopyTimes CopyEngine::last_copy(const Copy& memory, std::int64_t now_ns) {
  settle(now_ns);
  CopyTimes last;
  auto place = touched_.upper_bound(memory.memory);
  if (place != touched_.begin()) --place;  // this copy may overlap the beginning of the memory
  for (; place != touched_.end() && place->first < memory.memory + memory.bytes; ++place) {
    const auto& [begin, touched] = *place;
    if (begin + touched.bytes > memory.memory && touched.times.end_ns > last.end_ns) last = touched.times;
  }
  return last;
}

void CopyEngine::take_marks(Queue& queue) {
  while (!queue.operations.empty() && queue.operations.front().is_mark) {
    const Operation& mark = queue.operations.front();
    const std::int64_t copies_ns = mark.mark.is_early ? queue.start_ns : queue.end_ns;
    queue.due.push_back({.due_ns = std::max(mark.enqueued_ns, copies_ns), .mark = mark.mark});
    queue.operations.pop_front();
    queue.mark_sums.pop_front();
  }
}

}  // namespace rp
