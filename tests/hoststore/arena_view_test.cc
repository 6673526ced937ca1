#include "hoststore/arena_view.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "hoststore/sequence_word.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/present_pages.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::unique_ptr<ArenaView> new_arena(std::uint64_t limit_bytes) {
  return std::make_unique<ArenaView>(Segment::create(Backing::kMemfd, "activations of worker 3"), limit_bytes);
}

std::unique_ptr<ArenaView> view_of(const ArenaView& arena) {
  return std::make_unique<ArenaView>(Segment::attach(UniqueFd(dup(arena.segment().fd())), "activations of worker 3"),
                                     arena.limit_bytes());
}

TEST(ArenaView, MeetsTheGrowthOfAnotherMappingWhenItIsAskedForAnAllocationThere) {
  const auto owner = new_arena(64 * kMiB);
  const auto peer = view_of(*owner);
  for (std::uint64_t size = kMiB; size <= 8 * kMiB; size += kMiB) {
    owner->grow(size);
    *owner->data(size - 1, 1) = static_cast<std::byte>(size / kMiB);
    EXPECT_EQ(*peer->data(size - 1, 1), static_cast<std::byte>(size / kMiB));
  }
}

TEST(ArenaView, KeepsTheAddressOfAnAllocationWhileTheArenaGrows) {
  const auto arena = new_arena(64 * kMiB);
  arena->grow(1);
  std::byte* first = arena->data(0, 100);
  first[99] = std::byte{9};
  arena->grow(40 * kMiB);
  EXPECT_EQ(arena->data(0, 40 * kMiB), first);
  EXPECT_EQ(arena->data(20 * kMiB, 5), first + 20 * kMiB);
  EXPECT_EQ(first[99], std::byte{9});
}

TEST(ArenaView, HasThePagesOfItsOwnersGrowthAtOnce) {
  const auto owner = new_arena(64 * kMiB);
  owner->grow(kMiB);
  owner->grow(9 * kMiB);
  EXPECT_EQ(num_present_pages(owner->data(0, 9 * kMiB), 9 * kMiB), 9 * kMiB / kTestPage);
}

TEST(ArenaView, RefusesAnAllocationThatTheFileDoesNotHave) {
  const auto owner = new_arena(64 * kMiB);
  const auto peer = view_of(*owner);
  owner->grow(kMiB);
  EXPECT_NO_THROW((void)peer->data(0, kMiB));
  expect_error(ExitCode::kUserError, {"activations of worker 3", "1048576"}, [&] { (void)peer->data(kMiB, 1); });
  expect_error(ExitCode::kUserError, {"damaged"}, [&] { (void)peer->data(1, kMiB); });
  expect_error(ExitCode::kUserError, {"damaged"}, [&] { (void)peer->data(UINT64_MAX, 2); });
  expect_error(ExitCode::kUserError, {"damaged"}, [&] { (void)peer->data(2, UINT64_MAX); });
}

TEST(ArenaView, GrowsToItsBudgetAndNotBeyond) {
  const auto arena = new_arena(4 * kMiB);
  arena->grow(4 * kMiB);
  expect_error(ExitCode::kNoResource, {"activations of worker 3", "budget is 4.00 MiB", "more microbatches"},
               [&] { arena->grow(4 * kMiB + 1); });
  EXPECT_EQ(arena->segment().bytes(), 4 * kMiB);
  arena->grow(kMiB);  // it is that long already
  EXPECT_EQ(arena->segment().bytes(), 4 * kMiB);
}

TEST(ArenaView, IsMetByManyThreadsAtOnce) {
  const auto owner = new_arena(64 * kMiB);
  const auto peer = view_of(*owner);
  SequenceWord grown{};
  constexpr std::uint64_t kPieces = 32;
  const std::atomic<bool> never{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
        ASSERT_EQ(grown.wait_at_least(piece + 1, {&never, 20 * kNsPerSecond}), WaitResult::kReached);
        ASSERT_EQ(*peer->data(piece * kMiB, kMiB), static_cast<std::byte>(piece));
      }
    });
  }
  for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
    owner->grow((piece + 1) * kMiB);
    *owner->data(piece * kMiB, 1) = static_cast<std::byte>(piece);
    grown.publish(piece + 1);
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(ArenaView, IsSharedBetweenProcesses) {
  const auto arena = new_arena(16 * kMiB);
  const int status = test::status_of_process([&] {
    const auto owner = view_of(*arena);
    owner->grow(3 * kMiB);
    *owner->data(3 * kMiB - 1, 1) = std::byte{33};
    return true;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*arena->data(3 * kMiB - 1, 1), std::byte{33});
}

}  // namespace
}  // namespace rp
