#include "launcher/hosts/host_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/common/temp_directory.h"

namespace rp::test {
namespace {

using testing::HasSubstr;

// In the place of mpirun: notes that it was started, and does on each host of its arguments what the file of this name
// says.
constexpr const char* kFakeMpirun = R"(#!/bin/sh
echo start >>$0.log
code=0
while [ $# -gt 0 ]; do
  if [ "$1" = --host ]; then
    if [ -e "$(dirname $0)/$2" ]; then sh "$(dirname $0)/$2" || code=$?; else echo "answer of $2"; fi
  fi
  shift
done
exit $code
)";

class HostCheckTest : public testing::Test {
 protected:
  HostCheckTest() {
    mpirun_.program = directory_.write("mpirun", kFakeMpirun);
    std::filesystem::permissions(mpirun_.program, std::filesystem::perms::owner_all);
    mpirun_.environment = {std::string("PATH=") + getenv("PATH")};
    getrlimit(RLIMIT_NOFILE, &mpirun_.open_files);
    sigemptyset(&mpirun_.signal_mask);
    setenv("TMPDIR", directory_.path().c_str(), 1);
    run_.rp_launch = "rp-launch";
    set_hosts(3);
  }
  ~HostCheckTest() override { unsetenv("TMPDIR"); }

  void set_hosts(int num) {
    run_.hosts.clear();
    for (int i = 0; i < num; ++i) run_.hosts.push_back({.name = "host" + std::to_string(i)});
  }
  [[nodiscard]] std::string ask_together(const Deadline& deadline = Deadline::after_seconds(20)) const {
    return ask_hosts_together(run_, mpirun_, "answer of", deadline, wait_);
  }
  [[nodiscard]] int num_starts() const {
    std::ifstream file(directory_.file("mpirun.log"));
    std::ostringstream text;
    text << file.rdbuf();
    return static_cast<int>(text.str().size() / std::string("start\n").size());
  }

  const TempDirectory directory_;
  ChildSpec mpirun_;
  NodesCommand run_;
  HostsWait wait_ = [](PollSet& set, const Deadline& deadline) {
    set.wait(deadline);
    return true;
  };
};

TEST_F(HostCheckTest, OneMpirunIsEnoughIfAllHostsAnswer) {
  EXPECT_EQ(ask_together(), "");
  EXPECT_EQ(num_starts(), 1);
}

TEST_F(HostCheckTest, AHostWithoutAnAnswerIsNoticedAlthoughMpirunEndsWithZero) {
  (void)directory_.write("host1", "echo not here >&2");
  EXPECT_THAT(ask_together(), HasSubstr("not all have answered:\nnot here\n"));
}

TEST_F(HostCheckTest, AFailureOfMpirunIsReported) {
  (void)directory_.write("host2", "echo no route >&2; exit 255");
  EXPECT_THAT(ask_together(), HasSubstr("mpirun has failed:\nno route\n"));
}

TEST_F(HostCheckTest, AHostThatIsSilentCostsNoMoreThanTheDeadline) {
  (void)directory_.write("host1", "exec sleep 1000");
  EXPECT_THAT(ask_together(Deadline::after_seconds(0.2)), HasSubstr("not ended in time"));
}

TEST_F(HostCheckTest, EachHostThatIsAskedAloneHasItsOwnAnswer) {
  (void)directory_.write("host0", "echo no GPU >&2; exit 69");
  (void)directory_.write("host2", "echo no route >&2; exit 255");
  const std::vector<HostAnswer> answers = ask_each_host(run_, mpirun_, wait_);
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0].code, 69);
  EXPECT_EQ(answers[0].text, "no GPU\nrp-launch: host host0 cannot start the run (exit code 69)\n");
  EXPECT_EQ(answers[1].code, 0);
  EXPECT_EQ(answers[1].text, "");
  EXPECT_EQ(answers[1].output, "answer of host1\n");
  EXPECT_EQ(answers[2].code, static_cast<int>(ExitCode::kNoResource));
  EXPECT_THAT(answers[2].text, HasSubstr("no route\nrp-launch: host host2 cannot be reached"));
  EXPECT_FALSE(answers[2].is_reached);
  EXPECT_EQ(num_starts(), 3);
}

TEST_F(HostCheckTest, ManyHostsAreAskedInTheirOrderAndNotAllAtOnce) {
  set_hosts(40);
  (void)directory_.write("host39", "exit 3");
  std::size_t most = 0;
  const std::vector<HostAnswer> answers = ask_each_host(run_, mpirun_, [&](PollSet& set, const Deadline& deadline) {
    std::size_t running = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      running += entry.path().filename().string().starts_with("rp-launch-") ? 1 : 0;
    most = std::max(most, running);
    set.wait(deadline);
    return true;
  });
  EXPECT_EQ(num_starts(), 40);
  EXPECT_EQ(most, 16U);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(answers[i].host, run_.hosts[i]);
    EXPECT_EQ(answers[i].code, i == 39 ? 3 : 0);
  }
}

TEST_F(HostCheckTest, ASignalEndsTheQuestionsAtOnce) {
  for (const Host& host : run_.hosts) (void)directory_.write(host.name, "exec sleep 1000");
  const HostsWait stop = [](PollSet&, const Deadline&) { return false; };
  EXPECT_NE(ask_hosts_together(run_, mpirun_, "answer of", Deadline::after_seconds(20), stop), "");
  for (const HostAnswer& answer : ask_each_host(run_, mpirun_, stop)) EXPECT_NE(answer.code, 0);
}

}  // namespace
}  // namespace rp::test
