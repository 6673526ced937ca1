#include "planner/prediction/workload_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/common/expect_refusal.h"
#include "tests/planner/workload_json.h"

namespace rp::test {
namespace {

using nlohmann::json;

json small() {
  return {{"gpus", 2},
          {"microbatches", 4},
          {"layers", {{{"forward_ms", 1}, {"backward_ms", 2}}, {{"forward_ms", 3}, {"backward_ms", 4.5}}}},
          {"head", {{"forward_ms", 5}, {"backward_ms", 6}}}};
}

json with(const json& changes) {
  json all = small();
  all.update(changes);
  return all;
}

TEST(WorkloadFile, WhatIsNotGivenHasAMeaning) {
  const WorkloadFile file = read_json(small());
  EXPECT_EQ(file.workload.num_gpus, 2);
  EXPECT_EQ(file.workload.num_microbatches, 4);
  EXPECT_EQ(file.workload.round_microbatches, 4);
  EXPECT_FALSE(file.gives_round);
  EXPECT_EQ(file.workload.hop, 0);
  EXPECT_EQ(file.workload.layers.at(1).backward, 4.5);
  EXPECT_EQ(file.workload.head.forward, 5);
  EXPECT_FALSE(file.workload.fused_waits) << "as in the published simulations";
  EXPECT_EQ(file.max_fused_layers, 2);
  EXPECT_FALSE(file.stages.has_value());
  EXPECT_FALSE(file.plan.has_value());
}

TEST(WorkloadFile, EverySettingIsRead) {
  const WorkloadFile file = read_json(with({{"round_microbatches", 2},
                                            {"hop_ms", 0.5},
                                            {"stages", {2, 0}},
                                            {"forward_stages", {1}},
                                            {"backward_stages", {1, 1}},
                                            {"max_fused_layers", 1},
                                            {"gpu_slowness", {1, 2}},
                                            {"fused_waits", true}}));
  EXPECT_EQ(file.workload.round_microbatches, 2);
  EXPECT_TRUE(file.gives_round);
  EXPECT_EQ(file.workload.hop, 0.5);
  EXPECT_EQ(file.stages, (std::vector<int>{2, 0}));
  ASSERT_TRUE(file.plan.has_value());
  EXPECT_EQ(file.plan->fused_start, 1);
  EXPECT_EQ(file.plan->forward, (std::vector<LayerRange>{{0, 1}}));
  EXPECT_EQ(file.plan->backward, (std::vector<LayerRange>{{0, 1}}));
  EXPECT_EQ(file.max_fused_layers, 1);
  EXPECT_EQ(file.workload.slowness, (std::vector<double>{1, 2}));
  EXPECT_TRUE(file.workload.fused_waits);
}

TEST(WorkloadFile, StagesMayBeTheTextThatIsPrinted) {
  json input = small();
  for (int i = 2; i < 9; ++i) input["layers"].push_back({{"forward_ms", 1}, {"backward_ms", 2}});
  input.update({{"stages", "2,1x7,0"}, {"forward_stages", "8"}, {"backward_stages", "1,2x4"}});
  const WorkloadFile file = read_json(input);
  EXPECT_EQ(file.stages, (std::vector<int>{2, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(file.plan->backward, (std::vector<LayerRange>{{6, 8}, {4, 6}, {2, 4}, {0, 2}}));
  input["stages"] = "2,1y7";
  expect_refusal({"\"stages\" is '2,1y7'", "2,1x4,0"}, [&] { (void)read_json(input); });
  input["stages"] = "2000000000x2";
  expect_refusal({"\"stages\" is '2000000000x2'"}, [&] { (void)read_json(input); });
}

// Larger steps took more than 11 GB, or minutes.
TEST(WorkloadFile, AStepThatTakesTooLongToSimulateIsRefusedWithTheLimit) {
  json input = small();
  input["gpus"] = 257;
  expect_refusal({"\"gpus\" is 257", "from 1 to 256"}, [&] { (void)read_json(input); });
  input = small();
  for (int i = 2; i < 1024; ++i) input["layers"].push_back({{"forward_ms", 1}, {"backward_ms", 2}});
  input["microbatches"] = 1024;
  EXPECT_NO_THROW((void)read_json(input));
  input["microbatches"] = 1025;
  expect_refusal({"has 1024 layers and 1025 microbatches", "1048576 at most", "at most 1024 \"microbatches\""},
                 [&] { (void)read_json(input); });
  input["microbatches"] = 1024;
  input["round_microbatches"] = 4;
  expect_refusal({"cuts a step into 256 rounds", "128 are simulated at most", "\"round_microbatches\" of at least 8"},
                 [&] { (void)read_json(input); });
  input["layers"].push_back({{"forward_ms", 1}, {"backward_ms", 2}});
  expect_refusal({"\"layers\" has 1025 entries; it must have 1 to 1024"}, [&] { (void)read_json(input); });
}

TEST(WorkloadFile, MemoryOfLayersIsReadInMebibytes) {
  EXPECT_TRUE(read_json(small()).memory.empty());
  json input = with_memory(small(), {{"weights_mib", 100}, {"activation_mib", 0.5}, {"saved_mib", 0}});
  input["layers"][1]["upload_mib"] = 25;
  const WorkloadFile file = read_json(input);
  ASSERT_EQ(file.memory.size(), 3U);
  EXPECT_EQ(file.memory[0].weights, 100 * 1048576);
  EXPECT_EQ(file.memory[0].upload, 100 * 1048576) << "all of it, where the file does not say";
  EXPECT_EQ(file.memory[0].activation, 524288);
  EXPECT_EQ(file.memory[0].saved, 0);
  EXPECT_EQ(file.memory[1].upload, 25 * 1048576);
  EXPECT_EQ(file.memory[2].weights, 100 * 1048576) << "the head";
}

TEST(WorkloadFile, MemoryThatIsWrongIsNamed) {
  const json good = with_memory(small(), {{"weights_mib", 100}, {"activation_mib", 1}, {"saved_mib", 2}});
  const auto refused = [&](const std::function<void(json&)>& change, std::vector<std::string> parts) {
    json input = good;
    change(input);
    expect_refusal(parts, [&] { (void)read_json(input); });
  };
  refused([](json& input) { input["layers"][1]["weights_mib"] = -1; },
          {"\"layers\"[1].weights_mib is -1", "MiB, 0 or more"});
  refused([](json& input) { input["layers"][0]["upload_mib"] = "much"; }, {"\"layers\"[0].upload_mib is \"much\""});
  refused([](json& input) { input["head"]["saved_mib"] = nullptr; }, {"\"head\".saved_mib is null"});
  refused([](json& input) { input["layers"][1].erase("saved_mib"); },
          {"\"layers\"[1] lacks the key \"saved_mib\"", "all layers and the head"});
  refused(
      [](json& input) {
        input["head"] = {{"forward_ms", 1}, {"backward_ms", 1}};
      },
      {"\"head\" lacks the key \"weights_mib\""});
  refused([](json& input) { input["layers"][0]["weight_mib"] = 1; }, {"'weight_mib'", "did you mean weights_mib"});
}

TEST(WorkloadFile, WhatIsWrongIsNamed) {
  const auto refused = [](const json& changes, std::vector<std::string> parts) {
    expect_refusal(parts, [&] { (void)read_json(with(changes)); });
  };
  refused({{"gpu", 2}}, {"workload.json", "unknown key 'gpu'", "did you mean gpus"});
  refused({{"gpus", 0}}, {"\"gpus\" is 0", "from 1"});
  refused({{"gpus", 1.5}}, {"\"gpus\" is 1.5", "whole number"});
  refused({{"microbatches", -4}}, {"\"microbatches\" is -4"});
  refused({{"round_microbatches", 3}}, {"\"round_microbatches\" is 3", "4, must be a multiple"});
  refused({{"hop_ms", -1}}, {"\"hop_ms\" is -1", "0 or more"});
  refused({{"layers", json::array()}}, {"\"layers\" has 0 entries"});
  refused({{"layers", {{{"forward_ms", 1}, {"backward_ms", 0}}}}}, {"\"layers\"[0].backward_ms is 0", "above 0"});
  refused({{"layers", {{{"forward_ms", -2}, {"backward_ms", 1}}}}}, {"\"layers\"[0].forward_ms is -2"});
  refused({{"layers", {{{"forward_ms", 1}}}}}, {"\"layers\"[0] lacks the key \"backward_ms\""});
  refused({{"layers", {{{"forward_ms", 1}, {"backwards_ms", 0}}}}},
          {"\"layers\"[0]", "'backwards_ms'", "did you mean backward_ms"});
  refused({{"head", 3}}, {"\"head\" is 3", "forward_ms and backward_ms"});
  refused({{"stages", {1, 2}}}, {"\"stages\" has 3 layers together; 2 are needed"});
  refused({{"stages", {1, -1}}}, {"\"stages\"[1] is -1"});
  refused({{"forward_stages", {2}}}, {"one of \"forward_stages\" and \"backward_stages\""});
  refused({{"forward_stages", {2}}, {"backward_stages", {1, 1}}},
          {"\"forward_stages\" has 2 layers together; 1 are needed"});
  refused({{"forward_stages", {2}}, {"backward_stages", {0, 2, 0}}}, {"\"backward_stages\"[2] is 0"});
  refused({{"gpu_slowness", {1}}}, {"\"gpu_slowness\" has 1 entries; it must have 2"});
  refused({{"fused_waits", "yes"}}, {"\"fused_waits\" is neither true nor false"});
}

}  // namespace
}  // namespace rp::test
