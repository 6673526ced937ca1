// Tests the host store's registration with a driver that refuses for a while, permanently, or if
// pieces are long.
#include "cuda/pinned_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/mutex.h"
#include "tests/common/expect_refusal.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/small_store.h"

namespace rp {
namespace {

using test::FakeDriver;
using test::store_with_layers;

constexpr std::uint64_t kStorePage = 4096;

// Returns options with pieces of a few pages and timeouts that are short enough for a test.
PinnedStoreOptions impatient(std::uint64_t piece_bytes = std::uint64_t{16} << 20) {
  return {.policy = {.piece_bytes = piece_bytes,
                     .least_bytes = kStorePage,
                     .longest_pause_ns = 2 * kNsPerMs,
                     .later_ns = 20 * kNsPerMs},
          .control_timeout_ns = 50 * kNsPerMs};
}

class PinnedRun {
 public:
  PinnedRun(Store& store, const FakeDriver& driver, const PinnedStoreOptions& options = impatient())
      : store_(store),
        context_(CudaContext::open(driver.table(), "")),
        pinned(context_),
        pinned_store(
            pinned, store, [this](const std::string& text) { add(text); }, options) {}

  // Returns true if all of these bytes are registered, in any number of pieces.
  [[nodiscard]] bool has(const std::byte* data, std::uint64_t bytes) const {
    for (std::uint64_t at = 0; at < bytes;) {
      const PinnedMemory::Extent extent = pinned.extent(data + at, bytes - at);
      if (!extent.is_registered) return false;
      at += extent.bytes;
    }
    return true;
  }
  [[nodiscard]] bool has_all() const {
    for (const Store::Region& region : store_.regions()) {
      if (!has(region.data, region.bytes)) return false;
    }
    return true;
  }
  [[nodiscard]] bool has_all_within_20_s() const {
    for (const Deadline deadline = Deadline::after_seconds(20); !deadline.passed(); std::this_thread::yield()) {
      if (has_all()) return true;
    }
    return false;
  }
  [[nodiscard]] std::vector<std::string> warnings() {
    MutexLock lock(mutex_);
    return warnings_;
  }
  void wait_for_warnings(std::size_t num) {
    const Deadline deadline = Deadline::after_seconds(20);
    while (warnings().size() < num && !deadline.passed()) std::this_thread::yield();
  }

 private:
  void add(const std::string& text) {
    MutexLock lock(mutex_);
    warnings_.push_back(text);
  }

  Store& store_;
  CudaContext context_;
  Mutex mutex_;
  std::vector<std::string> warnings_ RP_GUARDED_BY(mutex_);

 public:
  PinnedMemory pinned;
  PinnedStore pinned_store;
};

// Returns the lengths of the registered pieces of a region.
std::vector<std::uint64_t> pieces_of(const PinnedRun& run, const Store::Region& region) {
  std::vector<std::uint64_t> pieces;
  for (std::uint64_t at = 0; at < region.bytes; at += pieces.back()) {
    pieces.push_back(run.pinned.extent(region.data + at, region.bytes - at).bytes);
  }
  return pieces;
}

TEST(PinnedStore, RegistersAllOfTheStore) {
  const FakeDriver driver;
  const auto store = store_with_layers(5, 10'000);
  PinnedRun run(*store, driver);
  run.pinned_store.wait_until_through();
  EXPECT_TRUE(run.has_all());
  EXPECT_TRUE(run.has(store->control().data, store->control().bytes));
  for (const Store::Region& region : store->regions()) {
    if (region.bytes > 0) {
      EXPECT_EQ(pieces_of(run, region).size(), 1U) << store_part_name(region.part);
    }
  }
  EXPECT_TRUE(run.warnings().empty());
}

TEST(PinnedStore, CutsItIntoPiecesWhereLayersBegin) {
  const FakeDriver driver;
  const auto store = store_with_layers(5, 10'000);  // 40000 bytes each
  PinnedRun run(*store, driver, impatient(100'000));
  run.pinned_store.wait_until_through();
  const Store::Region weights = store->regions().at(0);
  ASSERT_EQ(weights.cuts.size(), 5U);
  const std::uint64_t third = weights.cuts[2] / kStorePage * kStorePage,
                      fifth = weights.cuts[4] / kStorePage * kStorePage;
  EXPECT_EQ(pieces_of(run, weights), (std::vector<std::uint64_t>{third, fifth - third, weights.bytes - fifth}))
      << "at the page on which a layer begins";
}

TEST(PinnedStore, NeverRegistersMoreThanOnePieceAtOnceOfAnything) {
  const FakeDriver driver;
  const auto store = store_with_layers(40, 10'000);
  constexpr std::uint64_t kPieceBytes = 16 * kStorePage;
  PinnedRun run(*store, driver, impatient(kPieceBytes));
  store->arena(0).grow(3 << 20);
  run.pinned_store.notice_unregistered(store->arena(0).data(0, 3 << 20));
  ASSERT_TRUE(run.has_all_within_20_s());
  std::vector<Store::Region> regions = store->regions();
  regions.push_back(store->control());
  for (const Store::Region& region : regions) {
    for (const std::uint64_t bytes : pieces_of(run, region))
      EXPECT_LE(bytes, kPieceBytes) << store_part_name(region.part);
  }
}

TEST(PinnedStore, RegistersWhatAnArenaGrewByWhenACopyMeetsIt) {
  const FakeDriver driver;
  const auto store = store_with_layers(1, 1000);
  PinnedRun run(*store, driver);
  run.pinned_store.wait_until_through();
  for (const std::uint64_t bytes : {1U << 20, 3U << 20}) {
    store->arena(0).grow(bytes);
    std::byte* const data = store->arena(0).data(0, bytes);
    EXPECT_FALSE(run.has(data, bytes));
    run.pinned_store.notice_unregistered(data);
    EXPECT_TRUE(run.has_all_within_20_s());
  }
  EXPECT_EQ(run.pinned.extent(store->arena(0).data(0, 1), 3 << 20).bytes, 1U << 20) << "in two pieces";
}

// For each piece: if a second attempt succeeds, it is not a failure, and the user sees no message.
TEST(PinnedStore, TriesAgainWhatIsRefusedForAWhile) {
  for (int max_refusals = 1; max_refusals <= 5; ++max_refusals) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << max_refusals << " refusals, seed " << seed);
      const FakeDriver driver({.seed = seed, .refusals = {.max_refusals = max_refusals}});
      const auto store = store_with_layers(20, 10'000);
      PinnedRun run(*store, driver, impatient(8 * kStorePage));
      store->arena(0).grow(1 << 20);
      run.pinned_store.notice_unregistered(store->arena(0).data(0, 1 << 20));
      EXPECT_TRUE(run.has_all_within_20_s());
      EXPECT_TRUE(run.has(store->control().data, store->control().bytes));
      EXPECT_TRUE(run.warnings().empty());
      EXPECT_EQ(driver.num_registered_twice(), 0);
    }
  }
}

TEST(PinnedStore, RegistersInShorterPiecesWhatTheDriverTakesInNoLongOne) {
  const FakeDriver driver({.refusals = {.max_pin_bytes = 5 * kStorePage}});
  const auto store = store_with_layers(20, 10'000);
  PinnedRun run(*store, driver);
  EXPECT_TRUE(run.has_all_within_20_s());
  EXPECT_TRUE(run.has(store->control().data, store->control().bytes));
  EXPECT_TRUE(run.warnings().empty());
  EXPECT_EQ(driver.num_registered_twice(), 0);
}

TEST(PinnedStore, ReportsOnceWhatStaysStagedWithItsCostAndThatItIsCured) {
  FakeDriver driver;
  const auto store = store_with_layers(3, 10'000);
  PinnedRun run(*store, driver, impatient(4 * kStorePage));
  ASSERT_TRUE(run.has_all_within_20_s());
  driver.refuse_registrations(true);
  store->arena(0).grow(1 << 20);
  run.pinned_store.notice_unregistered(store->arena(0).data(0, 1 << 20));
  run.wait_for_warnings(1);
  EXPECT_THAT(
      run.warnings(),
      testing::ElementsAre(testing::AllOf(
          testing::HasSubstr(
              "1.00 MiB of 1.00 MiB of activations cannot be registered with the CUDA driver: CUDA_ERROR_"),
          testing::HasSubstr("pinned buffer"), testing::HasSubstr("bus's speed"), testing::HasSubstr("ulimit -l"))));
  driver.refuse_registrations(false);
  EXPECT_TRUE(run.has_all_within_20_s()) << "what was given up is tried again";
  run.wait_for_warnings(2);
  EXPECT_THAT(run.warnings().back(), testing::HasSubstr("all of the host store is registered"));
  EXPECT_EQ(run.warnings().size(), 2U);
}

TEST(PinnedStore, IsAnErrorWithoutTheControlSegmentOnlyWhenItStaysRefused) {
  FakeDriver driver;
  const auto store = store_with_layers(1, 1000);
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  { const PinnedRun run(*store, driver); }
  driver.refuse_registrations(true);
  expect_error(ExitCode::kNoResource, {"control segment", "CUDA_ERROR_FAKE", "ulimit -l"},
               [&] { PinnedRun run(*store, driver); });
}

}  // namespace
}  // namespace rp
