#include "nccl/node_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/system/clock.h"
#include "common/text.h"

namespace rp {

namespace {

// A wait looks first after the shorter time, which is what NCCL needs to enqueue, then more and more
// rarely.
constexpr std::int64_t kShortestPauseNs = 20'000;
constexpr std::int64_t kLongestPauseNs = kNsPerMs;

}  // namespace

NodeCommunicator::~NodeCommunicator() { abort(); }

void NodeCommunicator::check(NcclResult result, const char* what) const {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return;
  check_nccl(table_, result, cat("node ", place_.node, " of ", place_.num_nodes, ", ", what));
}

NcclResult NodeCommunicator::progress(const char* what) {
  NcclResult state = NcclResult::kSuccess;
  check(table_.comm_get_async_error(comm_, &state), what);
  check(state, what);
  return state;
}

WaitResult NodeCommunicator::wait_idle(const WaitLimits& limits, const char* what) {
  Patience patience(limits.timeout_ns);
  std::int64_t pause_ns = kShortestPauseNs;
  MutexLock lock(mutex_);
  while (true) {
    if (comm_ == nullptr) return WaitResult::kStopped;
    if (limits.stop != nullptr && limits.stop->load(std::memory_order_acquire)) return WaitResult::kStopped;
    if (progress(what) == NcclResult::kSuccess) return WaitResult::kReached;
    const std::int64_t left_ns = patience.left_ns();
    if (left_ns <= 0) return WaitResult::kTimedOut;
    changed_.wait_for_ns(mutex_, std::min(left_ns, pause_ns));
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
  }
}

bool NodeCommunicator::connect(const NcclId& id, const WaitLimits& limits) {
  constexpr const char* kWhat = "connecting the GPUs of the nodes";
  {
    MutexLock lock(mutex_);
    if (abort_ != nullptr) return false;
    RP_ASSERT(comm_ == nullptr);
    NcclConfig config;
    config.blocking = 0;
    check(table_.comm_init_rank_config(&comm_, place_.num_nodes, id, place_.node, &config), kWhat);
  }
  const WaitResult result = wait_idle(limits, kWhat);
  if (result != WaitResult::kTimedOut) return result == WaitResult::kReached;
  abort();
  throw Error(ExitCode::kNodeLost,
              cat("node ", place_.node, ", connecting the GPUs of the nodes: not all ", place_.num_nodes,
                  " nodes have joined NCCL's communicator within ", limits.timeout_ns / kNsPerSecond,
                  " s; look at the logs of the others, and whether they reach each other in the network that NCCL has "
                  "chosen: NCCL_DEBUG=INFO prints it, NCCL_SOCKET_IFNAME names another one"));
}

// A group that was started must be ended even if a call in it has failed, because the thread's next
// calls would belong to it.
void NodeCommunicator::exchange(std::span<const ExchangePart> parts, CUstream_st* stream) {
  constexpr const char* kWhat = "exchanging gradients";
  const auto moves = [](const ExchangePart& part) { return !part.sent.empty() || !part.received.empty(); };
  if (std::ranges::none_of(parts, moves)) return;
  MutexLock lock(mutex_);
  if (abort_ != nullptr) return;
  RP_ASSERT(comm_ != nullptr);
  RP_ASSERT(progress(kWhat) == NcclResult::kSuccess);
  check(table_.group_start(), kWhat);
  NcclResult first_error = NcclResult::kSuccess;
  const auto note = [&first_error](NcclResult result) {
    if (first_error == NcclResult::kSuccess && result != NcclResult::kInProgress) first_error = result;
  };
  for (const ExchangePart& part : parts) {
    if (!part.sent.empty())
      note(table_.send(part.sent.data(), part.sent.size(), NcclType::kUint8, part.node, comm_, stream));
    if (!part.received.empty())
      note(table_.recv(part.received.data(), part.received.size(), NcclType::kUint8, part.node, comm_, stream));
  }
  note(table_.group_end());
  check(first_error, kWhat);
}

WaitResult NodeCommunicator::wait_enqueued(const WaitLimits& limits) {
  return wait_idle(limits, "exchanging gradients");
}

void NodeCommunicator::check() {
  MutexLock lock(mutex_);
  if (comm_ != nullptr) (void)progress("exchanging gradients");
}

// NCCL waits for its own operations, which may take long while a network is cut. So a thread of its own calls it.
void NodeCommunicator::abort() {
  std::shared_ptr<Abort> abort;
  {
    MutexLock lock(mutex_);
    if (abort_ == nullptr) {
      abort_ = std::make_shared<Abort>();
      publish_abort();
      changed_.notify_all();
      // No thread calls NCCL with it any more. A failure leaves nothing to do: the process ends next.
      ncclComm* const comm = std::exchange(comm_, nullptr);
      const auto end = [abort = abort_] {
        MutexLock lock_of_abort(abort->mutex);
        abort->is_done = true;
        abort->changed.notify_all();
      };
      if (comm == nullptr) {
        end();
      } else {
        std::thread([comm, comm_abort = table_.comm_abort, end] {
          (void)comm_abort(comm);
          end();
        }).detach();
      }
    }
    abort = abort_;
  }
  MutexLock lock(abort->mutex);
  while (!abort->is_done && abort->patience.left_ns() > 0)
    abort->changed.wait_for_ns(abort->mutex, std::max<std::int64_t>(abort->patience.left_ns(), 1));
}

bool NodeCommunicator::finish(std::int64_t timeout_ns) {
  constexpr const char* kWhat = "disconnecting the GPUs of the nodes";
  {
    MutexLock lock(mutex_);
    if (comm_ == nullptr) return false;
    check(table_.comm_finalize(comm_), kWhat);
  }
  const WaitResult result = wait_idle({.stop = nullptr, .timeout_ns = timeout_ns}, kWhat);
  if (result == WaitResult::kTimedOut) abort();
  if (result != WaitResult::kReached) return false;
  MutexLock lock(mutex_);
  if (comm_ == nullptr) return false;
  ncclComm* const comm = std::exchange(comm_, nullptr);
  check(table_.comm_destroy(comm), kWhat);
  return true;
}

}  // namespace rp
