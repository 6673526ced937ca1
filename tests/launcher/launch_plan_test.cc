#include "launcher/launch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hoststore/control.h"
#include "launcher/machine/program_path.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"
#include "tests/launcher/fake_nvml.h"

namespace rp {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::size_t num_workers_on(int usable_cores) {
  LaunchOptions options;
  options.command = {"/bin/sh"};
  const LocalMachine machine{.usable_cores = usable_cores, .nodes = {{0, {0, 1}}}, .gpus = {}, .cuda = {}};
  return make_launch_plan(options, machine, "").processes.size() - 1;
}

TEST(LaunchPlan, TheDefaultIsAWorkerPerCoreUpToTheRoomInTheStore) {
  EXPECT_EQ(num_workers_on(3), 3U);
  EXPECT_EQ(num_workers_on(192), static_cast<std::size_t>(kMaxWorkers));
}

// A new communicator would need all nodes.
TEST(LaunchPlan, NodesWhoseGpusExchangeGradientsReplaceNoWorker) {
  const LaunchOptions options = parse_launch_options({"--reduce", "nccl", "/bin/sh"});
  LocalMachine machine{.usable_cores = 1, .nodes = {{0, {0}}}, .gpus = {}, .cuda = {}};
  EXPECT_EQ(make_launch_plan(options, machine, "").on_worker_failure, WorkerFailurePolicy::kReplay);
  EXPECT_EQ(make_launch_plan(options, machine, "").notes,
            std::vector<std::string>{"--reduce has no effect on one node"});
  machine.num_nodes = 2;
  EXPECT_EQ(make_launch_plan(options, machine, "").on_worker_failure, WorkerFailurePolicy::kAbort);
  EXPECT_THROW((void)parse_launch_options({"--reduce", "nccl", "--on-worker-failure", "replay", "/bin/sh"}), Error);
}

TEST(LaunchPlan, ANetworkIsNotedAsWithoutEffectOnOneNodeOnly) {
  LaunchOptions options = parse_launch_options({"--network", "10gbit", "/bin/sh"});
  LocalMachine machine{.usable_cores = 1, .nodes = {{0, {0}}}, .gpus = {}, .cuda = {}};
  const std::vector<std::string> note{"--network has no effect on one node"};
  EXPECT_EQ(make_launch_plan(options, machine, "").notes, note);
  machine.num_nodes = 2;
  EXPECT_TRUE(make_launch_plan(options, machine, "").notes.empty());
  machine.num_nodes = 1;
  options.dry_run = true;
  EXPECT_TRUE(make_launch_plan(options, machine, "").notes.empty()) << "a host that is asked alone";
  options = parse_launch_options({"/bin/sh"});
  EXPECT_TRUE(make_launch_plan(options, machine, "").notes.empty());
}

// A machine with two NUMA nodes and four cards, two at each node, and a build that has the plug-in.
class GpuPlanTest : public testing::Test {
 protected:
  GpuPlanTest() {
    (void)directory_.write(kCudaPlugin, "");
    fake_driver() = {};
    fake_driver().cards = equal_cards(4);
    machine_ = {.usable_cores = 8,
                .nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}},
                .gpus = observe_gpus(fake_nvml()),
                .cuda = {}};
    for (std::size_t i = 0; i < 4; ++i) machine_.gpus.gpus[i].numa_node = i < 2 ? 1 : 0;
  }

  [[nodiscard]] LaunchPlan plan(std::vector<std::string> arguments) const {
    arguments.emplace_back("/bin/sh");
    return make_launch_plan(parse_launch_options(arguments), machine_, directory_.path());
  }
  [[nodiscard]] std::string refusal(const std::vector<std::string>& arguments, ExitCode code) const {
    try {
      (void)plan(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "not refused";
  }
  // Returns the value of a variable of the process; "unset" if the process does not get it.
  static std::string value(const LaunchPlan& plan, std::size_t process, const std::string& name) {
    for (const auto& [variable, value] : plan.processes.at(process).variables) {
      if (variable == name) return value;
    }
    return "unset";
  }

  const TempDirectory directory_;
  LocalMachine machine_;
};

TEST_F(GpuPlanTest, EachWorkerGetsItsCardByUuidAndSeesNoOther) {
  const LaunchPlan two = plan({"--gpus", "0,2"});
  ASSERT_EQ(two.processes.size(), 3U);
  EXPECT_EQ(value(two, 0, "RP_DEVICE"), "cuda");
  EXPECT_EQ(value(two, 1, "RP_GPU"), "GPU-a0-0000");
  EXPECT_EQ(value(two, 2, "RP_GPU"), "GPU-c2-0000");
  EXPECT_EQ(value(two, 1, "CUDA_VISIBLE_DEVICES"), "GPU-a0-0000");
  EXPECT_EQ(value(two, 2, "CUDA_VISIBLE_DEVICES"), "GPU-c2-0000");
  EXPECT_EQ(value(two, 2, "RP_WORKERS"), "2");
}

TEST_F(GpuPlanTest, WithEventsEachWorkerSeesAllCardsOfTheRunItsOwnFirst) {
  const LaunchPlan two = plan({"--gpus", "0,2", "--signals", "events"});
  EXPECT_EQ(value(two, 2, "RP_SIGNALS"), "events");
  EXPECT_EQ(value(two, 1, "CUDA_VISIBLE_DEVICES"), "GPU-a0-0000,GPU-c2-0000");
  EXPECT_EQ(value(two, 2, "CUDA_VISIBLE_DEVICES"), "GPU-c2-0000,GPU-a0-0000");
}

TEST_F(GpuPlanTest, TheCoordinatorSeesNoCard) {
  const LaunchPlan all = plan({"--gpus", "all"});
  EXPECT_EQ(all.processes.size(), 5U);
  EXPECT_EQ(value(all, 0, "CUDA_VISIBLE_DEVICES"), "");
  EXPECT_EQ(value(all, 0, "RP_GPU"), "unset");
  EXPECT_EQ(value(plan({"--device", "cpu", "-n", "1"}), 0, "CUDA_VISIBLE_DEVICES"), "unset")
      << "on other devices it stays";
}

TEST_F(GpuPlanTest, StreamsGetQueuesOfTheirOwnUnlessThePersonHasDecided) {
  EXPECT_EQ(value(plan({"--gpus", "1"}), 1, "CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_EQ(value(plan({"--gpus", "1"}), 0, "CUDA_DEVICE_MAX_CONNECTIONS"), "unset");
  machine_.sets_max_connections = true;
  EXPECT_EQ(value(plan({"--gpus", "1"}), 1, "CUDA_DEVICE_MAX_CONNECTIONS"), "unset");
}

TEST_F(GpuPlanTest, WorkersAreBoundToTheCoresNearTheirCards) {
  const LaunchPlan all = plan({"--gpus", "0,1,2,0"});
  EXPECT_EQ(all.processes[0].cpus, CpuList{}) << "the coordinator is not bound";
  EXPECT_EQ(all.processes[1].cpus, CpuList{4});
  EXPECT_EQ(all.processes[2].cpus, CpuList{5});
  EXPECT_EQ(all.processes[3].cpus, (CpuList{0, 1, 2, 3}));
  EXPECT_EQ(all.processes[4].cpus, (CpuList{6, 7}));
  EXPECT_EQ(plan({"--gpus", "1", "--bind", "none"}).processes[1].cpus, CpuList{});
  machine_.gpus.gpus[0].numa_node = -1;
  EXPECT_EQ(plan({"--gpus", "1"}).processes[1].cpus, CpuList{}) << "an unknown node";
}

TEST_F(GpuPlanTest, WorkersThatDoNotAgreeWithTheGpusAreRefused) {
  EXPECT_EQ(plan({"--gpus", "2", "-n", "2"}).processes.size(), 3U);
  EXPECT_THAT(refusal({"--gpus", "2", "-n", "3"}, ExitCode::kUsage),
              HasSubstr("--gpus 2 gives 2 workers, one for each GPU, and --workers is 3"));
  EXPECT_THAT(refusal({"--gpus", "all", "-n", "3"}, ExitCode::kUsage), HasSubstr("--gpus all gives 4 workers"));
  EXPECT_EQ(plan({"--device", "cuda", "-n", "3"}).processes.size(), 4U);
}

TEST_F(GpuPlanTest, ABuildWithoutThePluginSaysSoBeforeAnythingElse) {
  fs::remove(directory_.file(kCudaPlugin));
  machine_.gpus = {.missing = "no driver"};
  const std::string message = refusal({"--gpus", "8"}, ExitCode::kNoResource);
  EXPECT_THAT(message, HasSubstr("--gpus 8: this build has no CUDA device: libroundpipe_cuda.so is neither"));
  EXPECT_THAT(message, HasSubstr("use --device cpu instead"));
}

TEST_F(GpuPlanTest, ADryRunNamesTheCards) {
  const std::string table = launch_plan_table(plan({"--gpus", "3,"}));
  EXPECT_THAT(table, HasSubstr("process      cores  GPU                 environment and command\n"));
  EXPECT_THAT(table, HasSubstr("worker 0     0-3    3 NVIDIA Fake 4090  RP_DEVICE=cuda"));
  EXPECT_EQ(launch_plan_table(plan({"-n", "1"})).find("GPU"), std::string::npos);
}

}  // namespace
}  // namespace rp
