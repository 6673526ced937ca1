// tests/cuda/gpu_node.h
// Moves gradients between GPUs as a worker does: computes them in one stream, exchanges them piece by
// piece in another, and downloads what was received in a third. nccl_exchange_test.cc uses the driver
// and NCCL without a GPU, gpu_nccl_test.cc a GPU.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cuda/cuda_stream.h"
#include "nccl/gradient_route.h"
#include "nccl/node_communicator.h"

namespace rp::test {

// What is sent and received in a piece of an exchange, and downloaded after it.
struct ExchangePiece {
  std::vector<ExchangePart> parts{};
  std::vector<GradientRoute::Download> downloads{};
};

class GpuNode {
 public:
  static constexpr std::int64_t kLongNs = 60 * kNsPerSecond;

  // `received_bytes`: of memory for received parts. Tables must outlive it.
  GpuNode(const CudaDriver& driver, const NcclTable& nccl, NodePlace place, std::uint64_t gradient_bytes,
          std::uint64_t received_bytes)
      : context_(CudaContext::open(driver, "")),
        arena_(context_, kArenaBytes),
        pinned_(context_),
        compute_(context_, memory(), false),
        exchange_(context_, memory(), false),
        download_(context_, memory(), false),
        computed_(context_),
        gradient_(arena_.allocate(gradient_bytes, MemoryUse::kGradients)),
        communicator_(nccl, place) {
    for (Buffer& buffer : buffers_)
      buffer.received = arena_.allocate(std::max<std::uint64_t>(received_bytes, 1), MemoryUse::kGradients);
  }
  ~GpuNode() {
    communicator_.abort();
    (void)becomes_idle();
  }
  GpuNode(const GpuNode&) = delete;
  GpuNode& operator=(const GpuNode&) = delete;

  [[nodiscard]] NodeCommunicator& communicator() { return communicator_; }
  [[nodiscard]] bool connect(const NcclId& id, std::int64_t timeout_ns) {
    context_.make_current();
    return communicator_.connect(id, {.stop = nullptr, .timeout_ns = timeout_ns});
  }

  // Waits until all streams have nothing left to do. Returns false if that takes too long.
  [[nodiscard]] bool becomes_idle() {
    bool is_idle = true;
    for (CudaStream* stream : {&compute_, &exchange_, &download_}) is_idle = stream->drain_within(kLongNs) && is_idle;
    return is_idle;
  }

  // Moves a gradient. `piece_of`: called with the number of the piece, the gradient and the memory for
  // received parts. Nothing waits for the GPU before everything is enqueued. Returns false after an
  // abort, after which `host` may have any contents. If it throws, `gradient` and `host` must stay
  // until all streams are idle.
  using PieceOf = std::function<ExchangePiece(std::uint64_t piece, const std::byte* gradient, std::byte* received)>;
  [[nodiscard]] bool move(std::span<const std::byte> gradient, std::span<std::byte> host, std::uint64_t num_pieces,
                          const PieceOf& piece_of) {
    compute_.copy(gradient_, gradient.data(), gradient.size());
    compute_.record(computed_);
    exchange_.wait_event(computed_);
    for (std::uint64_t piece = 0; piece < num_pieces; ++piece) {
      Buffer& buffer = buffers_[piece % buffers_.size()];
      const ExchangePiece what = piece_of(piece, gradient_, buffer.received);
      exchange_.wait_event(buffer.downloaded);
      communicator_.exchange(what.parts, exchange_.get());
      if (communicator_.wait_enqueued({.stop = nullptr, .timeout_ns = kLongNs}) != WaitResult::kReached) return false;
      exchange_.record(buffer.exchanged);
      download_.wait_event(buffer.exchanged);
      for (const GradientRoute::Download& each : what.downloads)
        download_.copy(host.data() + each.to, each.from.data(), each.from.size());
      download_.record(buffer.downloaded);
    }
    while (!download_.drain_within(10 * kNsPerMs)) communicator_.check();
    return !communicator_.observe_abort();
  }

 private:
  static constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 20;

  struct Buffer {
    explicit Buffer(const CudaContext& context) : exchanged(context), downloaded(context) {}
    std::byte* received = nullptr;
    CudaEvent exchanged;
    CudaEvent downloaded;
  };

  [[nodiscard]] CudaStream::Memory memory() {
    return {.arena = arena_, .pinned = pinned_, .on_unregistered = [](const std::byte*) {}};
  }

  const CudaContext context_;
  DeviceArena arena_;
  PinnedMemory pinned_;
  CudaStream compute_;
  CudaStream exchange_;
  CudaStream download_;
  CudaEvent computed_;
  std::byte* const gradient_;
  std::array<Buffer, 2> buffers_{Buffer(context_), Buffer(context_)};
  NodeCommunicator communicator_;
};

// A node that is alone sends to itself.
[[nodiscard]] inline GpuNode::PieceOf to_itself(std::uint64_t bytes, std::uint64_t piece_bytes) {
  return [bytes, piece_bytes](std::uint64_t piece, const std::byte* gradient, std::byte* received) {
    const std::uint64_t begin = piece * piece_bytes;
    const std::uint64_t length = std::min(piece_bytes, bytes - begin);
    return ExchangePiece{.parts = {{.node = 0, .sent = {gradient + begin, length}, .received = {received, length}}},
                         .downloads = {{.node = 0, .from = {received, length}, .to = begin}}};
  };
}

// Returns different bytes for different nodes and rounds.
[[nodiscard]] inline std::vector<std::byte> some_bytes(std::uint64_t size, int node, int round) {
  std::vector<std::byte> bytes(size);
  for (std::uint64_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + i / 251 + static_cast<std::uint64_t>(17 * node + 5 * round)) % 256);
  return bytes;
}

// A node that is alone moves gradients through its own GPU. Throws rp::Error.
inline void expect_exchange_with_itself(GpuNode& node, const NcclTable& nccl, std::uint64_t bytes,
                                        std::uint64_t piece_bytes) {
  NcclId id;
  check_nccl(nccl, nccl.get_unique_id(&id), "making an id");
  ASSERT_TRUE(node.connect(id, GpuNode::kLongNs));
  const std::uint64_t num_pieces = (bytes + piece_bytes - 1) / piece_bytes;
  for (int round = 0; round < 3; ++round) {
    const std::vector<std::byte> gradient = some_bytes(bytes, 0, round);
    std::vector<std::byte> host(bytes);
    ASSERT_TRUE(node.move(gradient, host, num_pieces, to_itself(bytes, piece_bytes)));
    EXPECT_TRUE(host == gradient) << "round " << round;
  }
  EXPECT_TRUE(node.communicator().finish(GpuNode::kLongNs));
}

}  // namespace rp::test
