#include "nodes/heartbeats.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/system/clock.h"
#include "common/system/host_name.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr NodeMessageTag kTag{.kind = NodeMessageKind::kHeartbeat};
constexpr std::int64_t kBeatsPerTimeout = 8;  // so that one that is late does no harm
constexpr std::int64_t kLongestIntervalNs = kNsPerSecond;

int node_after(NodePlace place) { return (place.node + 1) % place.num_nodes; }
int node_before(NodePlace place) { return (place.node + place.num_nodes - 1) % place.num_nodes; }

}  // namespace

NodeHeartbeats::NodeHeartbeats(NodeNetwork& network, std::int64_t timeout_ns)
    : network_(network), timeout_ns_(timeout_ns), shared_(std::make_shared<Shared>()) {
  own_.node = network.place().node;
  const std::string host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), own_.host.size() - 1), own_.host.begin());
  shared_->observed.node = node_before(network.place());
  network.add_failure_handler([shared = shared_](std::exception_ptr error) {
    MutexLock lock(shared->mutex);
    shared->error = std::move(error);
    shared->changed.notify_all();
  });
  receive(network, shared_);
  thread_ = std::thread([this] { run(); });
}

NodeHeartbeats::~NodeHeartbeats() {
  {
    MutexLock lock(shared_->mutex);
    shared_->stops = true;
    shared_->changed.notify_all();
  }
  thread_.join();
}

void NodeHeartbeats::receive(NodeNetwork& network, const std::shared_ptr<Shared>& shared) {
  network.receive(node_before(network.place()), kTag, std::as_writable_bytes(std::span(&shared->received, 1)),
                  [&network, shared] {
                    const Beat beat = shared->received;
                    if (beat.is_last == 0) receive(network, shared);
                    MutexLock lock(shared->mutex);
                    shared->observed = beat.sender;
                    shared->lost = beat.lost;
                    shared->has_heard = true;
                    shared->has_heard_last = beat.is_last != 0;
                    shared->changed.notify_all();
                  });
}

void NodeHeartbeats::send(const Beat& beat) {
  Beat& memory = beat.is_last != 0 ? shared_->last : shared_->sent;
  memory = beat;
  network_.send(node_after(network_.place()), kTag, std::as_bytes(std::span(&memory, 1)), [shared = shared_] {
    MutexLock lock(shared->mutex);
    --shared->num_sending;
    shared->changed.notify_all();
  });
}

void NodeHeartbeats::run() {
  pthread_setname_np(pthread_self(), "rp-heartbeats");
  Shared& shared = *shared_;
  const std::int64_t interval_ns = std::min(timeout_ns_ / kBeatsPerTimeout, kLongestIntervalNs);
  std::int64_t silent_ns = 0;
  std::int64_t checked_ns = now_ns();
  std::int64_t next_beat_ns = checked_ns;
  bool has_sent_last = false;
  MutexLock lock(shared.mutex);
  while (!shared.stops && !shared.error && !(has_sent_last && shared.num_sending == 0 && shared.has_heard_last)) {
    const std::int64_t now = now_ns();
    silent_ns += std::min(now - std::exchange(checked_ns, now), 2 * interval_ns);
    if (std::exchange(shared.has_heard, false) || shared.has_heard_last) silent_ns = 0;
    if (silent_ns >= timeout_ns_) shared.lost = shared.observed;
    const bool has_lost = shared.lost.node >= 0;
    const bool is_last = has_lost || (shared.finishes && !has_sent_last);
    // A beat is left out while the one before it is on its way, but the last one never is: it says which node is lost.
    const bool sends = !has_sent_last && (is_last || (shared.num_sending == 0 && now >= next_beat_ns));
    const Beat beat{.sender = own_, .lost = shared.lost, .is_last = is_last ? 1 : 0};
    if (!sends && !has_lost) {
      shared.changed.wait_for_ns(shared.mutex, interval_ns);
      continue;
    }
    has_sent_last = sends && is_last;
    next_beat_ns = now + interval_ns;
    shared.num_sending += sends ? 1 : 0;
    shared.mutex.unlock();
    if (sends) send(beat);
    if (has_lost) report(beat.lost);
    shared.mutex.lock();
    if (has_lost) return;
  }
  shared.stops = true;
  shared.changed.notify_all();
}

void NodeHeartbeats::report(const Place& lost) {
  const std::string host = lost.host.data();
  network_.report_failure(std::make_exception_ptr(
      Error(ExitCode::kNodeLost,
            cat("node ", lost.node, host.empty() ? "" : cat(" (", host, ")"), " has sent nothing for ",
                static_cast<double>(timeout_ns_) / kNsPerSecond,
                " s (--node-timeout): it has ended or hangs, or is cut off from node ",
                (lost.node + 1) % network_.place().num_nodes, "; start the run again from its newest checkpoint"))));
}

void NodeHeartbeats::finish() {
  MutexLock lock(shared_->mutex);
  shared_->finishes = true;
  shared_->changed.notify_all();
  while (!shared_->stops && !shared_->error) shared_->changed.wait(shared_->mutex);
  if (shared_->error) std::rethrow_exception(shared_->error);
}

}  // namespace rp
