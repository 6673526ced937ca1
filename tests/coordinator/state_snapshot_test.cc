#include "coordinator/updates/state_snapshot.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace rp {
namespace {

constexpr std::size_t kPartBytes = std::size_t{20} << 20;  // three pieces
constexpr std::uint32_t kSnapshotGroups = 4;

// The amount of free memory in addition to the copies, which is always the same.
std::function<std::uint64_t()> free_bytes(std::uint64_t bytes) {
  return [bytes] { return bytes; };
}
const auto kNoLimit = free_bytes(UINT64_MAX);

// Weight groups of two parts each. All bytes of a group are the number of its last update.
class Groups {
 public:
  Groups() : memory_(2 * kSnapshotGroups, std::vector<std::byte>(kPartBytes)) {}

  [[nodiscard]] std::vector<StateSnapshot::Part> parts() const {
    std::vector<StateSnapshot::Part> parts;
    for (std::uint32_t i = 0; i < memory_.size(); ++i) parts.push_back({.group = GroupId(i / 2), .memory = memory_[i]});
    return parts;
  }
  void update(std::uint32_t group, StateSnapshot& snapshot) {
    snapshot.before_update(GroupId(group), [] {});
    for (std::uint32_t i : {2 * group, 2 * group + 1}) {
      std::memset(memory_[i].data(), static_cast<int>(memory_[i][0]) + 1, kPartBytes);
    }
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

// Compares each byte with the one before it by memcmp(): ThreadSanitizer checks the whole range of
// a call at once, but a loop byte by byte.
bool is_all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// Whichever thread is faster, and however little may be copied, the saver reads the state before
// the updates.
TEST(StateSnapshot, IsReadAsItWasWhileUpdatesGoOn) {
  for (const bool updates_first_to_last : {true, false}) {
    for (const std::uint64_t free :
         {std::uint64_t{0}, std::uint64_t{2 * kPartBytes}, std::uint64_t{4 * kPartBytes}, UINT64_MAX}) {
      SCOPED_TRACE(testing::Message() << "free bytes " << free);
      Groups groups;
      StateSnapshot snapshot(groups.parts(), free_bytes(free));
      std::thread updates([&] {
        for (int step = 0; step < 3; ++step) {
          for (std::uint32_t i = 0; i < kSnapshotGroups; ++i)
            groups.update(updates_first_to_last ? i : kSnapshotGroups - 1 - i, snapshot);
        }
      });
      for (std::uint32_t i = 0; i < 2 * kSnapshotGroups; ++i) {
        std::size_t bytes = 0;
        EXPECT_TRUE(snapshot.read_next([&](std::span<const std::byte> piece) {
          bytes += piece.size();
          EXPECT_TRUE(is_all_zero(piece)) << "part " << i;
        }));
        EXPECT_EQ(bytes, kPartBytes);
      }
      snapshot.close();
      updates.join();
      EXPECT_LE(snapshot.peak_copied_bytes(), free);
    }
  }
}

TEST(StateSnapshot, CopiesNothingThatIsReadAndNothingTwice) {
  Groups groups;
  StateSnapshot snapshot(groups.parts(), kNoLimit);
  const auto ignore = [](std::span<const std::byte>) {};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(snapshot.read_next(ignore));
  groups.update(0, snapshot);
  EXPECT_EQ(snapshot.peak_copied_bytes(), 0U);
  groups.update(1, snapshot);
  groups.update(1, snapshot);
  EXPECT_EQ(snapshot.peak_copied_bytes(), kPartBytes) << "the first part of the group was read";
  EXPECT_TRUE(snapshot.read_next([](std::span<const std::byte> piece) { EXPECT_TRUE(is_all_zero(piece)); }));
  groups.update(2, snapshot);
  EXPECT_EQ(snapshot.peak_copied_bytes(), 2 * kPartBytes) << "the copy that was read is gone";
}

// While a piece is being written to a slow disk, only the update of its own group waits.
TEST(StateSnapshot, ASlowReaderHoldsUpNoOtherGroup) {
  Groups groups;
  StateSnapshot snapshot(groups.parts(), kNoLimit);
  int pieces = 0;
  EXPECT_TRUE(snapshot.read_next([&](std::span<const std::byte> piece) {
    if (pieces++ == 0) groups.update(3, snapshot);  // would never return if it waited for this piece
    EXPECT_TRUE(is_all_zero(piece));
  }));
}

// Memory that is free when the save begins may be used by activations later.
TEST(StateSnapshot, CopiesOnlyWhatThereIsRoomForByThen) {
  Groups groups;
  std::atomic<std::uint64_t> free{std::uint64_t{8} * kPartBytes};
  StateSnapshot snapshot(groups.parts(), [&] { return free.load(); });
  groups.update(1, snapshot);
  EXPECT_EQ(snapshot.peak_copied_bytes(), 2 * kPartBytes);
  free = 0;
  std::thread updates([&] { groups.update(2, snapshot); });
  for (std::uint32_t i = 0; i < 2 * kSnapshotGroups; ++i) {
    EXPECT_TRUE(snapshot.read_next([](std::span<const std::byte> piece) { EXPECT_TRUE(is_all_zero(piece)); }));
  }
  updates.join();
  EXPECT_EQ(snapshot.peak_copied_bytes(), 2 * kPartBytes);
}

// A saver that fails, or is no longer needed, delays no update.
TEST(StateSnapshot, OnceClosedUpdatesDoNotWait) {
  Groups groups;
  StateSnapshot snapshot(groups.parts(), free_bytes(0));
  std::atomic<int> num_waits{0};
  std::thread updates([&] { snapshot.before_update(GroupId(1), [&] { ++num_waits; }); });
  EXPECT_THROW((void)snapshot.read_next([](std::span<const std::byte>) { throw 1; }), int);
  snapshot.close();
  updates.join();
  groups.update(0, snapshot);
  EXPECT_EQ(snapshot.peak_copied_bytes(), 0U);
}

// Another thread than the saver's closes the snapshot while the saver may be reading a copy.
TEST(StateSnapshot, ClosedWhileItIsReadEndsWithThatPiece) {
  for (const bool is_copied : {false, true}) {
    Groups groups;
    StateSnapshot snapshot(groups.parts(), kNoLimit);
    if (is_copied) groups.update(0, snapshot);
    int num_pieces = 0;
    EXPECT_FALSE(snapshot.read_next([&](std::span<const std::byte> piece) {
      std::thread([&] { snapshot.close(); }).join();
      EXPECT_TRUE(is_all_zero(piece));
      ++num_pieces;
    }));
    EXPECT_EQ(num_pieces, 1);
  }
}

}  // namespace
}  // namespace rp
