#include "coordinator/exchange/communicator_ids.h"

#include <pthread.h>

#include "common/system/clock.h"
#include "nodes/node_tree.h"

namespace rp {

namespace {

constexpr NodeMessageTag kTag{.kind = NodeMessageKind::kCommunicators, .number = 0};

}  // namespace

CommunicatorIds::CommunicatorIds(Store& store, NodeNetwork& network)
    : store_(store), network_(network), ids_(static_cast<std::size_t>(store.num_workers())) {
  const int node = network.place().node;
  if (node == 0) {
    thread_ = std::thread([this] { wait_for_workers(); });
    return;
  }
  network.receive(parent_of(node), kTag, std::as_writable_bytes(std::span(ids_)), [this] {
    send();
    publish();
  });
}

void CommunicatorIds::stop() {
  stops_.store(true, std::memory_order_release);
  for (int worker = 0; worker < store_.num_workers(); ++worker) store_.communicator(worker).is_known.wake();
  if (thread_.joinable()) thread_.join();
}

void CommunicatorIds::finish() {
  stop();
  if (network_.place().node == 0 && !has_sent_) send();
}

void CommunicatorIds::wait_for_workers() {
  pthread_setname_np(pthread_self(), "rp-nccl-ids");
  for (int worker = 0; worker < store_.num_workers(); ++worker) {
    const CommunicatorId& id = store_.communicator(worker);
    WaitResult result = WaitResult::kTimedOut;
    while (result == WaitResult::kTimedOut) result = id.is_known.wait_at_least(1, {&stops_, kNsPerSecond});
    if (result == WaitResult::kStopped) return;
    ids_[static_cast<std::size_t>(worker)] = {.bytes = id.bytes, .is_known = 1};
  }
  send();
}

void CommunicatorIds::send() {
  has_sent_ = true;
  for (const int child : children_of(network_.place()))
    network_.send(child, kTag, std::as_bytes(std::span(ids_)), [] {});
}

void CommunicatorIds::publish() {
  for (int worker = 0; worker < store_.num_workers(); ++worker) {
    const Id& received = ids_[static_cast<std::size_t>(worker)];
    if (received.is_known == 0) continue;
    CommunicatorId& id = store_.communicator(worker);
    id.bytes = received.bytes;
    id.is_known.publish(1);
  }
}

}  // namespace rp
