// Tests what a worker tries to register at which time, with a driver that the test simulates. Times
// are set by the test.
#include "cuda/registration_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace rp {
namespace {

constexpr std::uint64_t kQueuePage = 4096;

constexpr RegistrationPolicy kPolicy = {.piece_bytes = 16 * kQueuePage,
                                        .least_bytes = 2 * kQueuePage,
                                        .attempts = 3,
                                        .num_doubtful = 2,
                                        .pause_ns = 1,
                                        .longest_pause_ns = 8,
                                        .lock_ns = 20,
                                        .later_ns = 100,
                                        .latest_ns = 400};

std::byte* address(std::uint64_t page) { return reinterpret_cast<std::byte*>(page * kQueuePage); }

Store::Region region_of(StorePart part, std::uint64_t first_page, std::uint64_t num_pages) {
  return {.part = part, .data = address(first_page), .bytes = num_pages * kQueuePage};
}

// A queue over a driver whose answers the test chooses. It records the attempts in pages.
struct Played {
  using Answer = std::function<bool(std::uint64_t first_page, std::uint64_t num_pages)>;

  // Makes all attempts that are due at this time.
  void run_at(std::int64_t now_ns, const Answer& accepts) {
    while (const auto attempt = queue.next(now_ns)) {
      const std::uint64_t first = reinterpret_cast<std::uintptr_t>(attempt->data) / kQueuePage;
      attempts.emplace_back(first, attempt->bytes / kQueuePage);
      if (accepts(first, attempt->bytes / kQueuePage)) {
        registered_pages += attempt->bytes / kQueuePage;
        queue.succeed();
      } else {
        queue.refuse(now_ns);
      }
    }
  }

  using Attempts = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // first page, number of pages
  [[nodiscard]] Attempts take_attempts() { return std::exchange(attempts, {}); }

  RegistrationQueue queue{kPolicy};
  Attempts attempts;
  std::uint64_t registered_pages = 0;
};

bool accepts_all(std::uint64_t, std::uint64_t) { return true; }
bool accepts_none(std::uint64_t, std::uint64_t) { return false; }

using Attempts = Played::Attempts;

TEST(RegistrationQueue, CutsWhatIsLongAndTakesTheFirstNeededFirst) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 100, 40));
  played.queue.add(region_of(StorePart::kActivations, 200, 17));
  played.run_at(0, accepts_all);
  EXPECT_EQ(played.take_attempts(), (Attempts{{200, 16}, {216, 1}, {100, 16}, {116, 16}, {132, 8}}));
  EXPECT_TRUE(played.queue.is_empty());
  EXPECT_EQ(played.queue.next_ns(), INT64_MAX);
}

TEST(RegistrationQueue, GoesOnWithTheNextPieceWhileARefusedOnePauses) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 0x100, 32));
  int num_refusals = 2;
  const auto accepts = [&](std::uint64_t first, std::uint64_t) { return first != 0x100 || num_refusals-- <= 0; };
  played.run_at(0, accepts);
  EXPECT_EQ(played.take_attempts(), (Attempts{{0x100, 16}, {0x110, 16}}));
  EXPECT_EQ(played.queue.next_ns(), 1);
  played.run_at(1, accepts);
  EXPECT_EQ(played.queue.next_ns(), 3) << "twice as long";
  played.run_at(3, accepts);
  EXPECT_EQ(played.take_attempts(), (Attempts{{0x100, 16}, {0x100, 16}})) << "at the same length";
  EXPECT_TRUE(played.queue.is_empty());
}

TEST(RegistrationQueue, HalvesWhatTheDriverKeepsRefusingAndRemembersTheLengthThatItTakes) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 0x100, 16));
  const auto accepts = [](std::uint64_t, std::uint64_t num_pages) { return num_pages <= 5; };
  for (std::int64_t now = 0; !played.queue.is_empty(); now = played.queue.next_ns()) played.run_at(now, accepts);
  EXPECT_EQ(
      played.take_attempts(),
      (Attempts{{0x100, 16}, {0x100, 16}, {0x100, 16}, {0x100, 8}, {0x100, 4}, {0x104, 4}, {0x108, 4}, {0x10c, 4}}));
  EXPECT_EQ(played.registered_pages, 16U);
  played.queue.add(region_of(StorePart::kGradients, 0x200, 9));
  played.run_at(1000, accepts);
  EXPECT_EQ(played.take_attempts(), (Attempts{{0x200, 4}, {0x204, 4}, {0x208, 1}}));
}

TEST(RegistrationQueue, AsksADriverThatRefusesAllOnceForEachFurtherPiece) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 0x100, 160));
  for (std::int64_t now = 0; now < 100; now = played.queue.next_ns()) played.run_at(now, accepts_none);
  // The first two pieces are tried three times with 16 pages, then with 8, 4 and 2; the second may
  // skip some attempts.
  EXPECT_EQ(played.queue.left(StorePart::kWeights).given_up_bytes, 160 * kQueuePage);
  EXPECT_EQ(played.queue.left(StorePart::kWeights).open_bytes, 0U);
  EXPECT_LE(played.attempts.size(), 6U * 2 + 8);
  (void)played.take_attempts();
  played.queue.add(region_of(StorePart::kActivations, 0x300, 16));
  played.run_at(99, accepts_none);
  EXPECT_EQ(played.take_attempts(), (Attempts{{0x300, 16}}));
}

TEST(RegistrationQueue, TriesWhatItGaveUpRarelyAndAllOfItOnceOneIsRegistered) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 0x100, 48));
  std::int64_t now = 0;
  for (; played.queue.left(StorePart::kWeights).open_bytes > 0; now = played.queue.next_ns())
    played.run_at(now, accepts_none);
  (void)played.take_attempts();
  std::vector<std::int64_t> times;
  for (int i = 0; i < 4; ++i, now = played.queue.next_ns()) {
    times.push_back(now);
    played.run_at(now, accepts_none);
  }
  ASSERT_EQ(played.attempts.size(), 4U) << "one at a time";
  EXPECT_NE(played.attempts[0], played.attempts[1]) << "in turns";
  EXPECT_EQ(played.attempts[0], played.attempts[3]);
  EXPECT_EQ(times[1] - times[0], 200);
  EXPECT_EQ(times[2] - times[1], 400);
  EXPECT_EQ(times[3] - times[2], 400);
  (void)played.take_attempts();
  played.run_at(now, accepts_all);
  EXPECT_EQ(played.attempts.size(), 3U);
  EXPECT_TRUE(played.queue.is_empty());
  EXPECT_EQ(played.queue.left(StorePart::kWeights).given_up_bytes, 0U);
}

// One bad page must not deprive all others of their second attempts.
TEST(RegistrationQueue, APieceThatStaysRefusedLeavesTheOthersAlone) {
  Played played;
  played.queue.add(region_of(StorePart::kWeights, 0x100, 48));
  const auto accepts = [](std::uint64_t first, std::uint64_t) { return first != 0x110; };
  std::int64_t now = 0;
  for (; now < 1000; now = played.queue.next_ns()) played.run_at(now, accepts);
  EXPECT_EQ(played.registered_pages, 32U);
  EXPECT_EQ(played.queue.left(StorePart::kWeights).given_up_bytes, 16 * kQueuePage);
}

TEST(RegistrationQueue, TurnsToOtherPiecesWhileOneIsLockedAndGoesWithoutTheLockInTheEnd) {
  RegistrationQueue queue(kPolicy);
  queue.add(region_of(StorePart::kWeights, 0x100, 32));
  EXPECT_EQ(queue.next(0)->data, address(0x100));
  queue.postpone(0);
  EXPECT_EQ(queue.next(0)->data, address(0x110));
  queue.succeed();
  for (std::int64_t now = 1; now < 20; ++now) {
    const auto attempt = queue.next(now);
    ASSERT_TRUE(attempt);
    EXPECT_FALSE(attempt->ignores_locks);
    queue.postpone(now);
  }
  EXPECT_TRUE(queue.next(20)->ignores_locks);
  queue.refuse(20);
  EXPECT_FALSE(queue.next(21)->ignores_locks) << "the next one asks again";
}

}  // namespace
}  // namespace rp
