#include "hoststore/memory/range_lock.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "hoststore/memory/segment.h"
#include "tests/common/temp_directory.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

// Runs a test with each kind of file in which the store may be.
class EachFile : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { segment_->reserve(1 << 20); }
  [[nodiscard]] int fd() const { return segment_->fd(); }

 private:
  [[nodiscard]] Segment make() const {
    const std::string kind = GetParam();
    if (kind == "file") return Segment::create_file(directory_.path(), "a test");
    return Segment::create(kind == "shm" ? Backing::kShm : Backing::kMemfd, "a test");
  }
  TempDirectory directory_;
  std::optional<Segment> segment_ = make();
};

TEST_P(EachFile, TwoLocksOfTheSameBytesExcludeEachOtherThoughTheDescriptorIsOne) {
  {
    const RangeLock first = RangeLock::try_take(fd(), 4096, 8192);
    EXPECT_FALSE(first.is_busy());
    EXPECT_TRUE(RangeLock::try_take(fd(), 8192, 8192).is_busy());
    EXPECT_FALSE(RangeLock::try_take(fd(), 12288, 4096).is_busy()) << "other bytes";
    EXPECT_FALSE(RangeLock::try_take(fd(), 0, 4096).is_busy());
  }
  EXPECT_FALSE(RangeLock::try_take(fd(), 8192, 8192).is_busy());
}

TEST_P(EachFile, AProcessThatWasHandedTheDescriptorIsExcludedToo) {
  const std::vector<UniqueFd> passed = test::duplicates({fd()});
  const RangeLock lock = RangeLock::try_take(fd(), 0, 4096);
  EXPECT_EQ(test::status_of_process([&] { return RangeLock::try_take(passed[0].get(), 0, 4096).is_busy(); }), 0);
}

TEST_P(EachFile, TheLockOfAProcessThatDiesIsReleased) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = test::start_process([&] {
    const RangeLock lock = RangeLock::try_take(fd(), 0, 4096);
    (void)!write(ends[1], "x", 1);
    while (true) pause();
    return true;
  });
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_TRUE(RangeLock::try_take(fd(), 0, 4096).is_busy());
  kill(child, SIGKILL);
  (void)test::wait_for_process(child);
  EXPECT_FALSE(RangeLock::try_take(fd(), 0, 4096).is_busy());
  for (const int end : ends) close(end);
}

INSTANTIATE_TEST_SUITE_P(Of, EachFile, testing::Values("memfd", "shm", "file"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RangeLock, IsFreeForAllWhereTheFileCannotBeOpenedAgain) {
  EXPECT_FALSE(RangeLock::try_take(-1, 0, 4096).is_busy());
}

}  // namespace
}  // namespace rp
