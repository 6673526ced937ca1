#include "launcher/member.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

namespace rp {
namespace {

class MemberTest : public testing::Test {
 protected:
  MemberTest() { getrlimit(RLIMIT_NOFILE, &run_.open_files); }

  Member start(int board_index, const std::vector<std::string>& command) {
    run_.plan.program = "/bin/sh";
    run_.plan.command = {"sh", "-c"};
    run_.plan.command.insert(run_.plan.command.end(), command.begin(), command.end());
    return {run_, {.name = "process", .board_index = board_index, .variables = {}, .cpus = {}, .gpu = {}}};
  }
  Member start_worker() { return start(1, {"sleep 100"}); }

  static void reap(Member& member) {
    pollfd ended{.fd = member.process().pidfd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ended, 1, 20'000), 1);
    EXPECT_TRUE(member.try_reap());
    EXPECT_FALSE(member.alive());
  }

 private:
  RunContext run_{.plan = {},
                  .board = FaultBoard::create(2),
                  .liveness_read = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)),
                  .liveness_write = UniqueFd(),
                  .no_input = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))};
};

TEST_F(MemberTest, AWorkerIsSentTheStoreOnceAndThenReportsThatItHasIt) {
  Member worker = start_worker();
  EXPECT_TRUE(worker.is(MemberState::kStarting));
  Message store;
  worker.send_store(store);
  EXPECT_EQ(store.worker, 0);
  EXPECT_TRUE(worker.is(MemberState::kAttaching));
  store.worker = -1;
  worker.send_store(store);
  EXPECT_EQ(store.worker, -1);
  worker.set_attached();
  EXPECT_TRUE(worker.is(MemberState::kAttached));
  EXPECT_FALSE(worker.try_reap());
  EXPECT_TRUE(worker.alive());
}

TEST_F(MemberTest, TheCoordinatorIsNotSentTheStoreThatItMakes) {
  Member coordinator = start(0, {"sleep 100"});
  Message store;
  coordinator.send_store(store);
  EXPECT_TRUE(coordinator.is(MemberState::kStarting));
  coordinator.set_attached();
  EXPECT_TRUE(coordinator.is(MemberState::kAttached));
}

TEST_F(MemberTest, AReportThatComesAfterTheKillOrTheDeathChangesNothing) {
  Member worker = start_worker();
  Message store;
  worker.send_store(store);
  for (int i = 0; i < 2; ++i) worker.kill_on_purpose();
  worker.set_attached();
  EXPECT_TRUE(worker.is(MemberState::kKilled));
  EXPECT_TRUE(worker.alive());
  reap(worker);
  worker.set_attached();
  worker.send_store(store);
  EXPECT_TRUE(worker.is(MemberState::kEndedOnPurpose));
}

TEST_F(MemberTest, AProcessThatHasEndedWasNotKilledOnPurpose) {
  Member worker = start(1, {"exit 3"});
  reap(worker);
  worker.kill_on_purpose();
  EXPECT_TRUE(worker.is(MemberState::kEnded));
  EXPECT_FALSE(worker.try_reap());
}

}  // namespace
}  // namespace rp
