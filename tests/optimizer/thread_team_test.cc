#include "optimizer/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <numeric>
#include <set>

namespace rp {
namespace {

TEST(ThreadTeam, EveryChunkIsDoneOnceAndIsVisibleToTheCaller) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadTeam team(num_threads);
    EXPECT_EQ(team.num_threads(), num_threads);
    for (const std::size_t num_chunks : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<int> done(num_chunks, 0);  // not atomic, so that ThreadSanitizer reports a missing order
      team.run(num_chunks, [&](std::size_t chunk) { ++done[chunk]; });
      EXPECT_EQ(done, std::vector<int>(num_chunks, 1));
    }
  }
}

TEST(ThreadTeam, ManyShortRunsFollowEachOtherOnTheSameData) {
  ThreadTeam team(3);
  std::array<std::int64_t, 5> counts{};
  for (int run = 0; run < 2000; ++run) team.run(counts.size(), [&](std::size_t chunk) { ++counts[chunk]; });
  for (const std::int64_t count : counts) EXPECT_EQ(count, 2000);
}

TEST(ThreadTeam, ThreadsCarryTheNameOfTheTeam) {
  ThreadTeam team(3, "sums");
  Mutex mutex;
  CondVar all_here;
  std::set<std::string> names;
  std::size_t num_here = 0;
  team.run(3, [&](std::size_t) {  // each chunk waits for the others, so the three chunks run on three threads
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    MutexLock lock(mutex);
    names.insert(name.data());
    ++num_here;
    all_here.notify_all();
    while (num_here < 3) all_here.wait(mutex);
  });
  EXPECT_TRUE(names.contains("sums-1"));
  EXPECT_TRUE(names.contains("sums-2"));
}

TEST(ThreadTeam, ATeamThatNeverRanEndsAtOnce) { ThreadTeam team(4); }

}  // namespace
}  // namespace rp
