#include "launcher/hosts/mpirun_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace rp::test {
namespace {

TEST(MpirunArguments, StartOneLauncherOnEachHostWithItsWorkers) {
  NodesCommand nodes{.hosts = {{.name = "a", .num_workers = 8}, {.name = "b"}},
                     .rp_launch = "/opt/bin/rp-launch",
                     .options = {"--tag-output"},
                     .command = {"train", "--workers", "x"},
                     .uses_gpus = false,
                     .variables = {"RP_STORE"}};
  const auto tail = [&] {
    const std::vector<std::string> words = mpirun_arguments(nodes);
    EXPECT_EQ(words.front(), "mpirun");
    return std::vector<std::string>(std::ranges::find(words, "--host"), words.end());
  };
  EXPECT_THAT(tail(), testing::ElementsAre("--host", "a", "-n", "1", "-x", "RP_STORE", "/opt/bin/rp-launch",
                                           "--tag-output", "--workers", "8", "--", "train", "--workers", "x", ":",
                                           "--host", "b", "-n", "1", "-x", "RP_STORE", "/opt/bin/rp-launch",
                                           "--tag-output", "--", "train", "--workers", "x"));
  nodes.uses_gpus = true;
  EXPECT_THAT(tail(), testing::Contains("--gpus"));
}

// Open MPI notices a silent host after the first pause and one interval for each probe.
TEST(MpirunArguments, AHostThatDoesNotAnswerIsLostAfterTheTimeout) {
  for (const int timeout : {2, 3, 5, 10, 60}) {
    NodesCommand nodes;
    nodes.hosts = {{.name = "a"}};
    nodes.timeout_seconds = timeout;
    const std::vector<std::string> words = mpirun_arguments(nodes);
    const auto value = [&](const std::string& setting) {
      return std::stoi(*(std::ranges::find(words, "oob_tcp_keepalive_" + setting) + 1));
    };
    EXPECT_EQ(value("time") + value("intvl") * value("probes"), timeout);
  }
}

TEST(PassedVariables, AreThoseOfRoundPipeButNotTheHosts) {
  setenv("RP_STORE", "shm", 1);
  setenv("RP_HOSTS", "a,b", 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  const std::vector<std::string> names = passed_variables();
  EXPECT_THAT(names, testing::IsSupersetOf({"RP_STORE", "NCCL_DEBUG"}));
  EXPECT_THAT(names, testing::Not(testing::Contains("RP_HOSTS")));
  unsetenv("RP_STORE");
  unsetenv("RP_HOSTS");
  unsetenv("NCCL_DEBUG");
}

}  // namespace
}  // namespace rp::test
