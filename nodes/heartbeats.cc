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

NodeHeartbeats::NodeHeartbeats(NodeNetwork& network, std::int64_t timeout_ns, NodeStandstill standstill)
    : network_(network),
      timeout_ns_(timeout_ns),
      interval_ns_(std::min(timeout_ns / kBeatsPerTimeout, kLongestIntervalNs)),
      standstill_(std::move(standstill)),
      shared_(std::make_shared<Shared>()) {
  own_.node = network.place().node;
  const std::string host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), own_.host.size() - 1), own_.host.begin());
  shared_->heard.sender.node = node_before(network.place());
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
                    shared->heard = beat;
                    shared->has_heard = true;
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

NodeHeartbeats::Waiting NodeHeartbeats::waiting(std::int64_t own_ns, const Beat& heard, std::int64_t age_ns) const {
  if (own_ns == 0) return {};
  if (heard.waiting.num_nodes == 0) return {.ns = own_ns, .num_nodes = 1};
  // A beat that is late may have been overtaken by what its sender has done since.
  const std::int64_t before_ns = heard.waiting.ns + std::min(age_ns, 2 * interval_ns_);
  return {.ns = std::min(own_ns, before_ns),
          .num_nodes = std::min(heard.waiting.num_nodes + 1, network_.place().num_nodes)};
}

// What the other nodes have said is older the further away they are. So all have waited at the same time only for what
// is left without the time of one lap.
bool NodeHeartbeats::have_all_waited(const Waiting& waiting) const {
  const int num_nodes = network_.place().num_nodes;
  return waiting.num_nodes == num_nodes && waiting.ns - num_nodes * interval_ns_ >= standstill_.limit_ns;
}

NodeHeartbeats::Beat NodeHeartbeats::next_beat(const Beat& heard, std::int64_t age_ns, std::int64_t own_ns,
                                               bool finishes) const {
  const bool is_first = own_.node == 0;
  Beat beat{.sender = own_, .lost = heard.lost, .waiting = waiting(own_ns, heard, age_ns), .all_wait = heard.all_wait};
  if (age_ns >= timeout_ns_) beat.lost = heard.sender;
  if (have_all_waited(beat.waiting)) beat.all_wait = 1;
  // The first node learns after one lap that all have ended, and the others after the second one.
  if (finishes && (is_first || heard.all_have_ended != 0)) beat.all_have_ended = 1;
  const bool may_end = beat.all_have_ended != 0 && (is_first ? heard.all_have_ended : heard.is_last) != 0;
  if (beat.has_failed() || may_end) beat.is_last = 1;
  return beat;
}

void NodeHeartbeats::run() {
  pthread_setname_np(pthread_self(), "rp-heartbeats");
  Shared& shared = *shared_;
  std::int64_t age_ns = 0;        // of the newest beat
  std::int64_t finishing_ns = 0;  // since finish() was called
  std::int64_t checked_ns = now_ns();
  std::int64_t next_beat_ns = checked_ns;
  Beat sent;
  MutexLock lock(shared.mutex);
  while (!shared.stops && !shared.error &&
         !(sent.is_last != 0 && shared.num_sending == 0 && shared.heard.is_last != 0)) {
    const std::int64_t now = now_ns();
    const std::int64_t slice_ns = std::min(now - std::exchange(checked_ns, now), 2 * interval_ns_);
    age_ns = std::exchange(shared.has_heard, false) || shared.heard.is_last != 0 ? 0 : age_ns + slice_ns;
    if (shared.finishes) finishing_ns += slice_ns;
    const std::int64_t own_ns = shared.finishes ? finishing_ns : standstill_.wait_ns();
    const Beat beat = next_beat(shared.heard, age_ns, own_ns, shared.finishes);
    // A beat is left out while the one before it is on its way, but the last one never is: it says why the run fails.
    const bool is_due = now >= next_beat_ns || beat.all_have_ended != sent.all_have_ended;
    const bool sends = sent.is_last == 0 && (beat.is_last != 0 || (shared.num_sending == 0 && is_due));
    if (!sends && !beat.has_failed()) {
      shared.changed.wait_for_ns(shared.mutex, interval_ns_);
      continue;
    }
    if (sends) {
      sent = beat;
      next_beat_ns = now + interval_ns_;
      ++shared.num_sending;
    }
    const bool finishes = shared.finishes;
    shared.mutex.unlock();
    if (sends) send(beat);
    if (beat.has_failed()) report(beat, finishes);
    shared.mutex.lock();
    if (beat.has_failed()) return;
  }
  shared.stops = true;
  shared.changed.notify_all();
}

void NodeHeartbeats::report(const Beat& last, bool finishes) {
  const int num_nodes = network_.place().num_nodes;
  if (last.lost.node >= 0) {
    const std::string host = last.lost.host.data();
    return network_.report_failure(std::make_exception_ptr(
        Error(ExitCode::kNodeLost,
              cat("node ", last.lost.node, host.empty() ? "" : cat(" (", host, ")"), " has sent nothing for ",
                  static_cast<double>(timeout_ns_) / kNsPerSecond,
                  " s (--node-timeout): it has ended or hangs, or is cut off from node ",
                  (last.lost.node + 1) % num_nodes, "; start the run again from its newest checkpoint"))));
  }
  const std::string text = finishes ? "the others to end, as its own program has" : standstill_.wait_text();
  network_.report_failure(std::make_exception_ptr(
      Error(ExitCode::kHang,
            cat("all ", num_nodes, " nodes wait for each other, and have done nothing else for ",
                static_cast<double>(standstill_.limit_ns) / kNsPerSecond,
                " s (--wait-timeout): their programs may have made different calls, or a message between them is lost",
                text.empty() ? "" : cat("; this node waits for ", text),
                "; make the same calls on all nodes, or raise --wait-timeout if the network needs longer"))));
}

void NodeHeartbeats::finish() {
  MutexLock lock(shared_->mutex);
  shared_->finishes = true;
  shared_->changed.notify_all();
  while (!shared_->stops && !shared_->error) shared_->changed.wait(shared_->mutex);
  if (shared_->error) std::rethrow_exception(shared_->error);
}

}  // namespace rp
