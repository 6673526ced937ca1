// Tests bulk copies over a driver in virtual time: how much of a link they use, and how long an
// urgent copy waits for them.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "common/text.h"
#include "cuda/cuda_stream.h"
#include "tests/common/wait_limits.h"
#include "tests/cuda/timed_driver.h"
#include "worker/copies/bulk_copies.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::int64_t kCallNs = 2000;

// A link, and the time from the end of a piece until the next one is in the link's queue.
struct Link {
  double bytes_per_ns = 0;
  std::int64_t refill_ns = 0;
  double jitter = 0;
  [[nodiscard]] double ns(std::uint64_t bytes) const { return static_cast<double>(bytes) / bytes_per_ns; }
};

// Registered host memory that no code accesses.
class HostMemory {
 public:
  explicit HostMemory(std::uint64_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~HostMemory() { munmap(data_, bytes_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const std::uint64_t bytes_;
  void* const data_;
};

// A thread that copies weight groups in bulk, and another thread whose copies are urgent.
class ModelRun {
 public:
  explicit ModelRun(const Link& link)
      : link_(link),
        timed_(driver_, {.bytes_per_ns = link.bytes_per_ns,
                         .call_ns = kCallNs,
                         .host_function_ns = link.refill_ns / 2,
                         .jitter = link.jitter}),
        context_(CudaContext::open(timed_.table(), "")),
        arena_(context_, 256 * kMiB),
        pinned_(context_),
        bulk_(context_, memory(), /*is_urgent=*/false),
        urgent_(context_, memory(), /*is_urgent=*/true),
        copies_(bulk_, /*yields=*/true, &TimedDriver::now_ns),
        to_(arena_.allocate(128 * kMiB, MemoryUse::kWeights)) {
    EXPECT_EQ(pinned_.add(from_.data(), 128 * kMiB, false), "");
  }

  void copy_groups(int num, std::uint64_t bytes) {
    const auto wait = [this](const auto& has_room) {
      while (has_room({&kNeverStop, 0}) != WaitResult::kReached) timed_.step();
      timed_.pass(link_.refill_ns / 2 - kCallNs);  // it wakes up; then the copy is called
      return true;
    };
    const auto enqueue_piece = [this](std::uint64_t, auto enqueue) {
      const std::uint64_t piece = copies_.piece_bytes();
      if (pieces_.empty() || pieces_.back().bytes != piece) pieces_.push_back({TimedDriver::now_ns(), piece});
      enqueue();
    };
    for (int i = 0; i < num; ++i) EXPECT_TRUE(copies_.copy(to_, from_.data(), bytes, wait, enqueue_piece));
  }

  // Begins urgent copies of `bytes` bytes at random times, `mean_ns` apart on average.
  void begin_urgent(std::uint64_t bytes, std::int64_t mean_ns) {
    std::exponential_distribution<double> times(1.0 / static_cast<double>(mean_ns));
    timed_.at(TimedDriver::now_ns() + static_cast<std::int64_t>(times(random_)), [this, bytes, mean_ns] {
      if (!sends_urgent_) return;
      urgent_.copy(to_, from_.data(), bytes);
      begin_urgent(bytes, mean_ns);
    });
  }

  void end() {
    sends_urgent_ = false;
    while (!timed_.is_idle()) timed_.step();
  }

  // Returns the fraction of the time during which the link copied.
  [[nodiscard]] double link_use() const {
    std::int64_t busy_ns = 0;
    for (const TimedDriver::Copy& copy : timed_.copies()) busy_ns += copy.end_ns - copy.start_ns;
    return static_cast<double>(busy_ns) /
           static_cast<double>(timed_.copies().back().end_ns - timed_.copies().front().start_ns);
  }
  // The longest time that an urgent copy waited for the link, in ns and relative to the time of a
  // piece then.
  struct Delay {
    double ns = 0;
    double pieces = 0;
    int num = 0;
  };
  [[nodiscard]] Delay longest_delay() const {
    Delay longest;
    for (const TimedDriver::Copy& copy : timed_.copies()) {
      if (copy.stream != urgent_.get()) continue;
      const double ns = static_cast<double>(copy.start_ns - copy.ready_ns);
      const auto later =
          std::upper_bound(pieces_.begin() + 1, pieces_.end(), copy.ready_ns,
                           [](std::int64_t ns, const PieceLength& piece) { return ns < piece.since_ns; });
      const double piece_ns = link_.ns(std::prev(later)->bytes);
      ++longest.num;
      longest.ns = std::max(longest.ns, ns);
      longest.pieces = std::max(longest.pieces, ns / piece_ns);
    }
    return longest;
  }
  [[nodiscard]] std::uint64_t piece_bytes() const { return copies_.piece_bytes(); }
  // Returns the bytes that the link copies during a refill.
  [[nodiscard]] double refill_bytes() const { return link_.bytes_per_ns * static_cast<double>(link_.refill_ns); }

 private:
  [[nodiscard]] CudaStream::Memory memory() {
    return {.arena = arena_, .pinned = pinned_, .on_unregistered = [](const std::byte*) {
              ADD_FAILURE() << "it is registered";
            }};
  }

  const Link link_;
  const HostMemory from_{128 * kMiB};
  const FakeDriver driver_;
  TimedDriver timed_;
  const CudaContext context_;
  DeviceArena arena_;
  PinnedMemory pinned_;
  CudaStream bulk_;
  CudaStream urgent_;
  BulkCopies copies_;
  std::byte* const to_;
  std::mt19937 random_{7};
  bool sends_urgent_ = true;
  // The length of pieces from a given time on.
  struct PieceLength {
    std::int64_t since_ns = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<PieceLength> pieces_;
};

class BulkCopiesModel : public testing::TestWithParam<Link> {
 protected:
  void print(const char* what, const ModelRun& run) const {
    const ModelRun::Delay delay = run.longest_delay();
    std::printf("%2.0f GB/s, refill of %3.0f us +- %2.0f %%, %-22s: pieces of %5.1f MiB, %.4f of the link",
                GetParam().bytes_per_ns, static_cast<double>(GetParam().refill_ns) / 1000, 100 * GetParam().jitter,
                what, static_cast<double>(run.piece_bytes()) / static_cast<double>(kMiB), run.link_use());
    if (delay.num > 0)
      std::printf("; %d urgent copies, the longest delay %.0f us: %.2f pieces", delay.num, delay.ns / 1000,
                  delay.pieces);
    std::printf("\n");
  }
  // Expects pieces that are not longer than the refill requires: 1.5 times its bytes, in steps of
  // 512 KiB. If refills vary in length, the bound is less exact.
  static void expect_no_larger_pieces_than_needed(const ModelRun& run) {
    const double needed = (GetParam().jitter > 0 ? 2.1 : 1.5) * run.refill_bytes() + static_cast<double>(kMiB) / 2;
    EXPECT_LE(static_cast<double>(run.piece_bytes()), std::max(needed, static_cast<double>(4 * kMiB)));
  }
};

TEST_P(BulkCopiesModel, KeepTheLinkBusy) {
  for (const std::uint64_t group : {96 * kMiB, 101 * kMiB + 333, 40 * kMiB}) {
    ModelRun run(GetParam());
    run.copy_groups(static_cast<int>(65536 * kMiB / group), group);
    run.end();
    print("bulk copies alone", run);
    EXPECT_GE(run.link_use(), 0.97);
    expect_no_larger_pieces_than_needed(run);
  }
}

TEST_P(BulkCopiesModel, DelayAnUrgentCopyByTwoPiecesAtMost) {
  for (const std::uint64_t bytes : {std::uint64_t{4096}, 16 * kMiB}) {
    ModelRun run(GetParam());
    run.begin_urgent(bytes, 4 * static_cast<std::int64_t>(GetParam().ns(16 * kMiB)));
    run.copy_groups(640, 100 * kMiB);
    run.end();
    print(bytes > kMiB ? "and inputs of 16 MiB" : "and pages of 4 KiB", run);
    EXPECT_GE(run.link_use(), 0.97);
    EXPECT_GT(run.longest_delay().num, 500);
    EXPECT_LE(run.longest_delay().pieces, 2);
    if (bytes < kMiB) expect_no_larger_pieces_than_needed(run);  // long ones also delay the copies that are measured
  }
}

std::vector<Link> links() {
  std::vector<Link> all;
  for (const double bytes_per_ns : {25.0, 50.0, 64.0}) {
    for (const std::int64_t refill_us : {50, 100, 200}) {
      for (const double jitter : {0.0, 0.2}) all.push_back({bytes_per_ns, refill_us * 1000, jitter});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Of, BulkCopiesModel, testing::ValuesIn(links()), [](const auto& info) {
  return cat(static_cast<int>(info.param.bytes_per_ns), "GBsRefill", info.param.refill_ns / 1000, "us",
             info.param.jitter > 0 ? "WithJitter" : "");
});

}  // namespace
}  // namespace rp::test
