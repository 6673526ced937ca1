#include "model_files/profile_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "model_files/config/embedded_files.h"
#include "model_files/layer_costs.h"
#include "scheduler/simulation/predicted_times.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using nlohmann::json;

json rtx4090_json() { return json::parse(embedded_rtx4090()); }

GpuProfile read(const json& object) {
  const TempDirectory directory;
  return read_gpu_profile(directory.write("mine.json", object.dump())).profile;
}

TEST(ProfileFile, EveryProfileThatComesWithTheProgramIsRead) {
  EXPECT_EQ(gpu_profile_names(),
            (std::vector<std::string>{"rtx3090", "rtx4090", "rtx5090", "a100", "a800", "h100", "h200"}));
  for (const std::string& name : gpu_profile_names()) {
    const ProfileFile<GpuProfile> file = gpu_profile(name);
    EXPECT_EQ(file.profile.name, name);
    EXPECT_GE(file.profile.fp16_accumulate_tflops, file.profile.fp32_accumulate_tflops);
    EXPECT_LE(file.profile.both_directions_gbs, file.profile.host_to_device_gbs);
    EXPECT_EQ(file.sources.size(), 14U) << "each figure has its source";
  }
  for (const std::string& name : server_profile_names()) EXPECT_EQ(server_profile(name).profile.name, name);
  EXPECT_EQ(server_profile("xeon6330-8gpu").profile.num_gpus, 8);
  const GpuProfile rtx4090 = gpu_profile("rtx4090").profile;
  EXPECT_EQ(rtx4090.memory_gib, 24);
  EXPECT_EQ(rtx4090.peak_tflops(Accumulate::kFp16), 330.3);
  EXPECT_EQ(rtx4090.host_to_device_gbs, 21);
}

TEST(ProfileFile, AFileOfOnesOwnIsGivenByItsPath) {
  const TempDirectory directory;
  json mine = rtx4090_json();
  mine["name"] = "my card";
  mine["figures"]["host_to_device"]["value"] = 12.5;
  const auto path = directory.write("mine.json", mine.dump());
  EXPECT_EQ(gpu_profile(path.string()).profile.name, "my card");
  EXPECT_EQ(gpu_profile(path.string()).profile.host_to_device_gbs, 12.5);
  const auto server = directory.write("server.json", std::string(embedded_server_xeon6330()));
  EXPECT_EQ(server_profile(server.string()).profile, server_profile("xeon6330-8gpu").profile);
}

TEST(ProfileFile, AnUnknownNameIsRefusedWithTheNearestAndAllOthers) {
  expect_error(ExitCode::kUsage, {"'rtx409'", "did you mean rtx4090", "rtx3090, rtx4090", "h200", "gpu_profile.md"},
               [] { (void)gpu_profile("rtx409"); });
  expect_error(ExitCode::kUsage, {"'xeon'", "server", "xeon6330-8gpu"}, [] { (void)server_profile("xeon"); });
  EXPECT_NE(error_of([] { (void)gpu_profile("./no_such_file.json"); }), "accepted");
}

TEST(ProfileFile, ABadFigureIsRefusedWithItsKeyAndWhatIsRight) {
  const auto with = [](const char* figure, const char* key, const json& value) {
    json object = rtx4090_json();
    object["figures"][figure][key] = value;
    return object;
  };
  expect_refusal({"mine.json", "'memory_bandwidth'", "unit is 'GiB'", "must be 'GB/s'"},
                 [&] { (void)read(with("memory_bandwidth", "unit", "GiB")); });
  expect_refusal({"'host_to_device'", "value is '-1'", "above 0"},
                 [&] { (void)read(with("host_to_device", "value", -1)); });
  expect_refusal({"'copy_latency'", "value is '0'", "above 0"}, [&] { (void)read(with("copy_latency", "value", 0)); });
  expect_refusal({"'gemm_efficiency'", "value is '89'", "above 0 to 1"},
                 [&] { (void)read(with("gemm_efficiency", "value", 89)); });
  expect_refusal({"'memory'", "number of GiB"}, [&] { (void)read(with("memory", "value", "24")); });
  expect_refusal({"'memory'", "unknown key 'values'", "did you mean value"},
                 [&] { (void)read(with("memory", "values", 24)); });
  expect_refusal({"'memory'", "source", "not empty"}, [&] { (void)read(with("memory", "source", "")); });
  json object = rtx4090_json();
  object["figures"].erase("usable_share");
  expect_refusal({"mine.json", "lacks 'usable_share'"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object["figures"]["memory"].erase("unit");
  expect_refusal({"'memory'", "lacks 'unit'"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object["figures"]["memory"] = 24;
  expect_refusal({"'memory'", "is '24'", "value, unit and source"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object["figures"]["memory_bandwith"] = object["figures"]["memory_bandwidth"];
  expect_refusal({"unknown key 'memory_bandwith'", "did you mean memory_bandwidth"}, [&] { (void)read(object); });
}

TEST(ProfileFile, AnotherFormatOrVersionIsRefused) {
  json object = rtx4090_json();
  object["version"] = 2;
  expect_refusal({"version is '2'", "reads version 1"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object["format"] = "roundpipe-server";
  expect_refusal({"format is 'roundpipe-server'", "'roundpipe-gpu'"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object["comment"] = "mine";
  expect_refusal({"unknown key 'comment'"}, [&] { (void)read(object); });
  object = rtx4090_json();
  object.erase("figures");
  expect_refusal({"lacks 'figures'"}, [&] { (void)read(object); });
}

// The published runs: eager operations, fp16 sums. The mean number of sequences of a microbatch is
// the global batch divided by rounds and microbatches.
struct Published {
  const char* model;
  double sequences;
  double tokens_per_second;
  TrainedParts parts{};
};

double predicted(const Published& run) {
  const CostSettings settings{.sequences = run.sequences, .parts = run.parts, .elementwise = Elementwise::kEager};
  const Workload work = predicted_workload(layer_costs(preset_config(run.model), settings),
                                           gpu_profile("rtx4090").profile, Accumulate::kFp16);
  double ms = work.head.forward + work.head.backward;
  for (const LayerWork& layer : work.layers) ms += 2 * layer.forward + layer.backward;
  return run.sequences * 2048 / (ms * 1e-3);
}

TEST(Calibration, ThePublishedSingleGpuThroughputIsMetByDenseModels) {
  for (const Published& run :
       {Published{"qwen3-1.7b", 12.8, 8881}, {"llama3.1-8b", 12.8, 3142}, {"qwen3-32b", 6.4, 740}}) {
    std::printf("%s: %.0f tokens/s, published %.0f (%+.1f %%)\n", run.model, predicted(run), run.tokens_per_second,
                100 * (predicted(run) / run.tokens_per_second - 1));
    EXPECT_NEAR(predicted(run) / run.tokens_per_second, 1, 0.01) << run.model;
  }
  const Published moe{"qwen3-235b", 6.4, 480, {.lora = {.rank = 32, .on_experts = true}}};
  std::printf("%s: %.0f tokens/s if nothing waited for transfers or launches, published %.0f\n", moe.model,
              predicted(moe), moe.tokens_per_second);
  EXPECT_GT(predicted(moe), moe.tokens_per_second)
      << "that run waits for its weights; the GPU's own work must not take longer";
}

TEST(Calibration, TimesOfLayersThatWereNotFittedAreNear) {
  struct Layer {
    const char* model;
    double forward, backward, head_forward, head_backward;
  };
  for (const Layer& layer : {Layer{"qwen3-1.7b", 7.429, 15.831, 22.0655, 43.707},
                             {"llama3.1-8b", 18.50370313, 41.20659375, 37.2255, 74.501},
                             {"qwen3-32b", 40.5610625, 91.17429688, 54.928, 108.294}}) {
    const CostSettings settings{.sequences = 4, .elementwise = Elementwise::kEager};
    const Workload work = predicted_workload(layer_costs(preset_config(layer.model), settings),
                                             gpu_profile("rtx4090").profile, Accumulate::kFp16);
    std::printf("%s: layer %.2f %.2f, head %.2f %.2f ms\n", layer.model, work.layers[1].forward,
                work.layers[1].backward, work.head.forward, work.head.backward);
    EXPECT_NEAR(work.layers[1].forward / layer.forward, 1, 0.08) << layer.model;
    EXPECT_NEAR(work.layers[1].backward / layer.backward, 1, 0.08) << layer.model;
    EXPECT_NEAR((work.head.forward + work.head.backward) / (layer.head_forward + layer.head_backward), 1, 0.08)
        << layer.model;
  }
}

}  // namespace
}  // namespace rp
