#include "worker/node_gradients.h"

#include <algorithm>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// How soon an error of NCCL is noticed, which ends no wait by itself.
constexpr std::int64_t kCheckNs = 100 * kNsPerMs;

Stream& exchange_stream_of(Device& device) {
  if (Stream* stream = device.exchange_stream()) return *stream;
  throw Error(ExitCode::kUsage, cat("NCCL exchanges gradients between NVIDIA GPUs, and the device is ", device.name(),
                                    "; use --reduce mpi"));
}

}  // namespace

NodeGradients::NodeGradients(const NcclTable& nccl, Store& store, int worker, Device& device, const Settings& settings)
    : place_(store.catalogue().place()),
      worker_(worker),
      device_(device),
      stream_(exchange_stream_of(device)),
      settings_(settings),
      route_(store.catalogue(), settings.received_bytes),
      id_(store.communicator(worker)),
      communicator_(nccl, place_) {
  device_.bind_thread();
  // Memory that is freed can be allocated again while operations that are enqueued still use it, and the exchange
  // stream waits for none of them.
  for (Buffer& buffer : buffers_) {
    buffer.received =
        device_.allocate(std::max<std::uint64_t>(route_.receive_buffer_bytes(), 1), MemoryUse::kGradients);
    buffer.downloaded = device_.make_event();
  }
  if (place_.node != 0) return;
  NcclId id;
  check_nccl(nccl, nccl.get_unique_id(&id), cat("node 0, worker ", worker, ", making the id of a communicator"));
  id_.bytes = id.bytes;
  id_.is_known.publish(1);
}

bool NodeGradients::connect(const std::atomic<bool>* stop) {
  if (is_connected_) return true;
  device_.bind_thread();
  const WaitResult known = id_.is_known.wait_at_least(1, {stop, settings_.connect_ns});
  if (known == WaitResult::kStopped) return false;
  if (known == WaitResult::kTimedOut) {
    throw Error(ExitCode::kNodeLost, cat("node ", place_.node, ", worker ", worker_, ": worker ", worker_,
                                         " of the first node has not begun to connect the GPUs within ",
                                         settings_.connect_ns / kNsPerSecond, " s; look at its log"));
  }
  is_connected_ = communicator_.connect({.bytes = id_.bytes}, {stop, settings_.connect_ns});
  return is_connected_;
}

std::vector<NodeGradients::Piece> NodeGradients::pieces_of(GroupId group, const std::byte* gradient) const {
  std::vector<Piece> pieces;
  for (std::uint64_t number = 0; number < route_.num_pieces(group); ++number)
    pieces.push_back({.group = group, .number = number, .gradient = gradient});
  return pieces;
}

void NodeGradients::begin(const Piece& piece, const Event& computed) {
  RP_ASSERT(num_begun_ - num_ended_ < buffers_.size());
  Buffer& buffer = buffer_of(num_begun_);
  stream_.wait_event(computed);
  stream_.wait_event(*buffer.downloaded);
  communicator_.exchange(route_.parts(piece.group, piece.number, piece.gradient, buffer.received.data()),
                         stream_.driver_stream());
  ++num_begun_;
}

WaitResult NodeGradients::wait_enqueued(const WaitLimits& limits) {
  const WaitResult result = communicator_.wait_enqueued(limits);
  if (result == WaitResult::kReached) stream_.signal(done_, num_begun_);
  return result;
}

WaitResult NodeGradients::wait_done(const WaitLimits& limits) {
  Patience patience(limits.timeout_ns);
  while (true) {
    const std::int64_t left_ns = std::max<std::int64_t>(patience.left_ns(), 0);
    const WaitResult result = done_.wait_at_least(num_ended_ + 1, {limits.stop, std::min(left_ns, kCheckNs)});
    // After an abort the stream goes on, although nothing has arrived, or NCCL needs long to end the exchange.
    if (communicator_.observe_abort()) return WaitResult::kStopped;
    if (result != WaitResult::kTimedOut || left_ns <= kCheckNs) return result;
    communicator_.check();
  }
}

std::vector<GradientRoute::Download> NodeGradients::downloads(const Piece& piece) const {
  return route_.downloads(piece.group, piece.number, piece.gradient, buffer_of(num_ended_).received.data());
}

void NodeGradients::end(Stream& stream) { stream.record(*buffer_of(num_ended_++).downloaded); }

void NodeGradients::leave() {
  const bool is_idle = done_.observe() == num_begun_ && is_connected_;
  try {
    if (is_idle && communicator_.finish(settings_.leave_ns)) return;
  } catch (const Error&) {  // nothing depends on it any more
  }
  abort();
}

std::uint64_t NodeGradients::device_bytes() const {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.received.bytes();
  return bytes;
}

}  // namespace rp
