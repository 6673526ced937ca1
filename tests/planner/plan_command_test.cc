#include "planner/plan_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/text.h"
#include "model_files/profile_file.h"
#include "planner/plan_report.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp::test {
namespace {

PlanAnswer asked(ModelQuestion question) { return answer_question(question, Effort::kFast); }
// Without the rows for fewer GPUs and other fused stages.
RunPrediction predicted(const ModelQuestion& question) { return predict_run(setup_of(question), Effort::kFast); }

TEST(PlanCommand, AnswersForAModelThatFits) {
  const PlanAnswer answer = asked({.model = "qwen3-1.7b", .num_gpus = 4, .batch = 32, .asynchronous = true});
  ASSERT_TRUE(answer.asked.prediction.has_value()) << answer.asked.problem;
  const RunPrediction& prediction = *answer.asked.prediction;
  EXPECT_NO_THROW(validate_plan(prediction.plan, 30)) << "embedding, 28 decoder layers, head";
  EXPECT_LE(static_cast<double>(prediction.gpu.total()), answer.setup.gpu.usable_bytes());
  EXPECT_LE(prediction.round_microbatches * prediction.rounds_per_step, 32);
  EXPECT_GE(prediction.round_microbatches, 4);
  EXPECT_GE(prediction.run.step_ms * (1 + 1e-9), prediction.lower_bound_ms);
  EXPECT_NEAR(prediction.run.gpus.total(), 4 * prediction.run.step_ms, 1e-6 * prediction.run.gpus.total());
  EXPECT_NEAR(prediction.tokens_per_s, 32 * 2048 * 1000 / prediction.run.step_ms, 1e-6 * prediction.tokens_per_s);
  EXPECT_GT(answer.longest_sequence, 73'000) << "what the Python version reaches";
  EXPECT_EQ(answer.num_trained, answer.num_parameters);

  ASSERT_EQ(answer.by_gpus.size(), 3U) << "1, 2 and 4 GPUs";
  EXPECT_LT(answer.by_gpus[0].prediction->tokens_per_s, answer.by_gpus[1].prediction->tokens_per_s);
  EXPECT_LT(answer.by_gpus[1].prediction->tokens_per_s, answer.by_gpus[2].prediction->tokens_per_s);
  const std::string text = answer_text(answer);
  for (const char* part :
       {"It fits.", "qwen3-1.7b: 1.72 billion parameters, all trained", "optimizer state", "tokens/s", "4 GPUs"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  const nlohmann::json json = nlohmann::json::parse(answer_json(answer));
  EXPECT_EQ(json["asked"]["fits_gpu"], true);
  EXPECT_EQ(json["by_gpus"].size(), 3U);
  EXPECT_NEAR(json["asked"]["step_ms"].get<double>(), prediction.run.step_ms, 1e-6);
}

TEST(PlanCommand, CountsCorrectionsThatAreTrained) {
  const auto memory_with = [](bool corrections) {
    TrainedParts parts;
    parts.corrections = corrections;
    return predicted({.model = "moonlight-16b", .gpu = "h200", .batch = 8, .parts = parts}).host;
  };
  const HostMemory frozen = memory_with(false), trained = memory_with(true);
  EXPECT_EQ(trained.gradients - frozen.gradients, 26U * 4096) << "a page for each layer with experts";
  EXPECT_EQ(trained.weights, frozen.weights);
  expect_error(ExitCode::kUsage, {"corrections of routers", "none"}, [] {
    TrainedParts parts;
    parts.corrections = true;
    (void)asked({.model = "qwen3-8b", .parts = parts});
  });
}

// Only config.json is read. The weights have the bytes that weights which a run quantises would have.
TEST(PlanCommand, CountsWeightsThatTheFilesHaveQuantised) {
  const nlohmann::json plain = {{"model_type", "llama"},           {"hidden_size", 1024},
                                {"intermediate_size", 4096},       {"num_hidden_layers", 4},
                                {"num_attention_heads", 8},        {"vocab_size", 1000},
                                {"rope_theta", 10000.0},           {"rms_norm_eps", 1e-5},
                                {"max_position_embeddings", 4096}, {"torch_dtype", "bfloat16"}};
  const std::vector<std::pair<nlohmann::json, FrozenWeights>> cases = {
      {{{"quant_method", "fp8"}}, FrozenWeights::kFp8},
      {{{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}, {"bnb_4bit_use_double_quant", true}},
       FrozenWeights::kNf4}};
  for (const auto& [quantization, same_as] : cases) {
    const TempDirectory directory;
    const auto memory_of = [&](const nlohmann::json& config, FrozenWeights wanted) {
      (void)directory.write("config.json", config.dump());
      const RunPrediction prediction = predicted({.model = directory.path().string(),
                                                  .num_gpus = 2,
                                                  .batch = 8,
                                                  .parts = {.lora = {.rank = 16}, .frozen_weights = wanted}});
      return std::pair(prediction.host.weights, prediction.gpu.weights);
    };
    nlohmann::json quantised = plain;
    quantised["quantization_config"] = quantization;
    const auto in_files = memory_of(quantised, FrozenWeights::kAsInFiles);
    EXPECT_EQ(in_files, memory_of(plain, same_as));
    EXPECT_EQ(memory_of(quantised, FrozenWeights::kNone), memory_of(plain, FrozenWeights::kAsInFiles));
    EXPECT_LT(static_cast<double>(in_files.first),
              0.6 * static_cast<double>(memory_of(plain, FrozenWeights::kAsInFiles).first));
  }
}

TEST(PlanCommand, DrawsTwoStepsWithTheirCopies) {
  const PlanAnswer answer =
      answer_question({.model = "smollm2-135m", .num_gpus = 2, .batch = 8, .asynchronous = true}, Effort::kFast, true);
  const TimelinePage page = answer_page(answer);
  ASSERT_EQ(page.sections.size(), 1U);
  const TimelineSection& section = page.sections.front();
  ASSERT_EQ(section.rows.size(), 3U) << "two GPUs and the updates";
  const std::vector<double>& ends = answer.asked.prediction->run.step_ends;
  const auto warm_up = static_cast<std::size_t>(kPredictedLength.warm_up);
  EXPECT_DOUBLE_EQ(section.length_ms, ends[warm_up + 1] - ends[warm_up - 1]);
  for (int gpu = 0; gpu < 2; ++gpu) {
    const TimelineRow& row = section.rows[gpu];
    for (const auto* lane : {&row.compute, &row.upload_inputs, &row.upload_weights, &row.download}) {
      ASSERT_FALSE(lane->empty());
      for (std::size_t i = 1; i < lane->size(); ++i) {
        EXPECT_GE((*lane)[i].start_ms, (*lane)[i - 1].end_ms - 1e-6) << "one at a time";
      }
    }
  }
  EXPECT_FALSE(section.rows.back().compute.empty());
  ASSERT_EQ(section.strips.size(), 2U) << "of GPU 0 and of the host";
  const RunPrediction& prediction = *answer.asked.prediction;
  EXPECT_EQ(section.strips[0].full, static_cast<double>(prediction.gpu.total()));
  EXPECT_EQ(section.strips[1].full, prediction.run.peak_activation_bytes);
  for (const TimelineStrip& strip : section.strips) {
    double peak = 0;
    for (const TimelinePoint& point : strip.points) peak = std::max(peak, point.amount);
    EXPECT_EQ(peak, &strip == &section.strips[0] ? static_cast<double>(prediction.run.peak_of(0)->bytes.total())
                                                 : strip.full);
    EXPECT_LE(peak, strip.full);
  }
  const std::string html = timeline_html(page);
  EXPECT_NE(html.find("GPU 0 memory, peak "), std::string::npos);
  EXPECT_NE(html.find("what the plan reserves"), std::string::npos);
  EXPECT_NE(html.find("smollm2-135m on 2 x rtx4090"), std::string::npos);
  EXPECT_NE(html.find("weights of layer"), std::string::npos);
}

// The memory in use at any time is less than the buffers, which are reserved for the largest stage.
TEST(PlanCommand, MemoryOverTimeIsWithinWhatThePlanReserves) {
  GpuProfile gpu = gpu_profile("h200").profile;
  gpu.memory_gib *= 2;  // room for a layer of DeepSeek V3 with its gradients
  for (const std::string& preset : preset_names()) {
    for (const bool lora : {false, true}) {
      SCOPED_TRACE(preset + (lora ? " LoRA" : ""));
      TrainingSetup setup{.model = preset_config(preset),
                          .gpu = gpu,
                          .server = server_profile("xeon6330-8gpu").profile,
                          .num_gpus = 2,
                          .host_bytes = 64e12,
                          .batch = 12,
                          .parts = {.lora = {.rank = lora ? 16 : 0, .on_experts = true}},
                          .asynchronous = true,
                          .round_microbatches = 3,
                          .rounds_per_step = 2,
                          .records_spans = true};
      const RunPrediction prediction = predict_run(setup, Effort::kFast);
      ASSERT_EQ(prediction.run.gpu_memory.size(), 2U);
      std::uint64_t peak = 0;
      for (int gpu = 0; gpu < 2; ++gpu) peak = std::max(peak, prediction.run.peak_of(gpu)->bytes.total());
      EXPECT_LE(peak, prediction.gpu.total());
      // At least what each stage needs while it computes, without the next stage's weights and the
      // previous stage's gradients.
      const std::vector<LayerCost> costs = costs_of(setup, 2);
      const auto expect_room = [&](LayerRange layers, Phase phase) {
        const GpuMemory stage = stage_memory(costs, layers, phase, prediction.recompute);
        EXPECT_GE(peak, stage.weights / 2 + stage.accumulators + stage.inputs / 2 + stage.saved) << layers.first;
      };
      expect_room({prediction.plan.fused_start, prediction.num_layers}, Phase::kFused);
      for (const LayerRange& layers : prediction.plan.backward) expect_room(layers, Phase::kBackward);
    }
  }
}

TEST(PlanCommand, KeepsTheSplitOfTheStepThatWasGiven) {
  const RunPrediction prediction =
      predicted({.model = "smollm2-135m", .num_gpus = 2, .batch = 20, .round_microbatches = 5, .rounds_per_step = 2});
  EXPECT_EQ(prediction.round_microbatches, 5);
  EXPECT_EQ(prediction.rounds_per_step, 2);
  EXPECT_EQ(prediction.microbatch_sequences, 2);
}

TEST(PlanCommand, SaysWhatDoesNotFitAndWhatWould) {
  const PlanAnswer host =
      asked({.model = "qwen3-1.7b", .num_gpus = 2, .host_bytes = std::uint64_t{8} << 30, .batch = 8});
  EXPECT_NE(answer_text(host).find("It does not fit the host's memory: it needs at least "), std::string::npos);
  const PlanAnswer gpu = asked({.model = "llama3.1-8b", .sequence_length = 200'000});
  EXPECT_FALSE(gpu.asked.prediction.has_value());
  const std::string text = answer_text(gpu);
  EXPECT_NE(text.find("22.1 GiB are usable"), std::string::npos) << text;
  EXPECT_NE(text.find("shorter sequences"), std::string::npos) << text;
  EXPECT_GE(gpu.longest_sequence, 49'000) << "what the Python version reaches";
  EXPECT_LT(gpu.longest_sequence, 200'000);
  EXPECT_NE(answer_json(gpu).find("\"problem\""), std::string::npos);
  const PlanAnswer batch = asked({.model = "smollm2-135m", .batch = 4, .round_microbatches = 8});
  EXPECT_NE(batch.asked.problem.find("larger --batch-size"), std::string::npos) << batch.asked.problem;
  expect_error(ExitCode::kUsage, {"llama3.1-9b", "did you mean llama3.1-8b"},
               [] { (void)asked({.model = "llama3.1-9b"}); });
  expect_error(ExitCode::kUsage, {"rtx4091", "did you mean rtx4090"},
               [] { (void)asked({.model = "qwen3-1.7b", .gpu = "rtx4091"}); });
}

TEST(PlanCommand, AHostWithLittleMemoryGetsTheFastestPlanThatFits) {
  TrainingSetup setup{.model = preset_config("qwen3-4b"),
                      .gpu = gpu_profile("rtx4090").profile,
                      .server = server_profile("xeon6330-8gpu").profile,
                      .num_gpus = 4,
                      .host_bytes = 256 * kGiB,
                      .batch = 8,
                      .recompute = RecomputeGrain::kStage};
  setup.parts.lora = {.rank = 16};
  setup.parts.frozen_weights = FrozenWeights::kNf4;
  const RunPrediction fastest = predict_run(setup, Effort::kFast);
  EXPECT_FALSE(fastest.is_held_by_host);

  setup.host_bytes = kGiB;
  const RunPrediction none = predict_run(setup, Effort::kFast);
  EXPECT_FALSE(fits_host(setup, none));
  const auto least = static_cast<double>(none.host.total()), most = static_cast<double>(fastest.host.total());
  EXPECT_LT(least, 0.9 * most);

  double before = 0;
  for (const double part : {0.0, 0.3, 0.6}) {
    SCOPED_TRACE(part);
    setup.host_bytes = least + part * (most - least);
    const RunPrediction held = predict_run(setup, Effort::kFast);
    EXPECT_TRUE(fits_host(setup, held));
    EXPECT_TRUE(held.is_held_by_host);
    EXPECT_LE(static_cast<double>(held.gpu.total()), setup.gpu.usable_bytes());
    EXPECT_NO_THROW(validate_plan(held.plan, held.num_layers));
    EXPECT_GE(held.tokens_per_s, 0.99 * before);
    EXPECT_LE(held.tokens_per_s, 1.01 * fastest.tokens_per_s);
    before = held.tokens_per_s;
    const PlanAnswer answer{.setup = setup, .asked = {.name = "asked", .prediction = held}};
    EXPECT_NE(answer_text(answer).find("It fits."), std::string::npos);
    EXPECT_NE(answer_text(answer).find("the fastest plan needs more memory than the host has"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(answer_json(answer))["asked"]["is_held_by_host"], true);
  }
}

TEST(PlanCommand, WhatTakesTooLongToSimulateIsRefusedWithTheLimit) {
  expect_error(
      ExitCode::kUsage,
      {"a step of 1000000 microbatches", "at most 496 are", "fewer --microbatches or --rounds-per-step"}, [] {
        (void)asked({.model = "qwen3-32b", .batch = 1'000'000, .round_microbatches = 1000, .rounds_per_step = 1000});
      });
  TrainingSetup setup{.model = preset_config("smollm2-135m")};
  setup.model.layers.resize(1025, setup.model.layers.front());
  expect_error(ExitCode::kUsage, {"1025 layers", "at most 1024"}, [&] { (void)predict_run(setup, Effort::kFast); });
  setup.model.layers.resize(1024, setup.model.layers.front());
  setup.num_gpus = 9;
  expect_error(ExitCode::kUsage, {"1024 layers is planned for at most 8 GPUs, not 9"},
               [&] { (void)predict_run(setup, Effort::kFast); });
  // The proposed split of the step is within the limit for any batch.
  const PlanAnswer answer = asked({.model = "smollm2-135m", .num_gpus = 2, .batch = 4096});
  ASSERT_TRUE(answer.asked.prediction.has_value()) << answer.asked.problem;
  EXPECT_LE(answer.asked.prediction->round_microbatches * answer.asked.prediction->rounds_per_step, 1024);
}

TEST(PlanCommand, SaysWhichKernelsAreAssumedAndHowFarExpertsAreOff) {
  const std::string dense = answer_text(asked({.model = "qwen3-0.6b", .num_gpus = 1, .batch = 4}));
  for (const char* part : {"Kernels that are assumed: this program's", "profile rtx4090",
                           "matrix products   0.89 of 165.2 TFLOP/s (derived from", "rp-plan compare --published",
                           "no run of this program on a GPU"}) {
    EXPECT_NE(dense.find(part), std::string::npos) << part << " in\n" << dense;
  }
  EXPECT_EQ(dense.find("experts"), std::string::npos);
  const std::string h100 = answer_text(asked({.model = "qwen3-0.6b", .num_gpus = 1, .gpu = "h100", .batch = 4}));
  EXPECT_NE(h100.find("(assumption: as derived for the rtx4090"), std::string::npos) << h100;
  const std::string experts = answer_text(asked({.model = "qwen3-30b-a3b", .num_gpus = 2, .batch = 8}));
  EXPECT_NE(experts.find("qwen3-235b LoRA published 1820, predicted "), std::string::npos) << experts;
}

TEST(PlanCommand, LoraNeedsLessMemoryAndLessTime) {
  const ModelQuestion full{.model = "qwen3-4b", .num_gpus = 2, .batch = 8};
  ModelQuestion pairs = full;
  pairs.parts.lora = {.rank = 16};
  const PlanAnswer a = asked(full), b = asked(pairs);
  EXPECT_LT(b.asked.prediction->host.total(), a.asked.prediction->host.total() / 2);
  EXPECT_GT(b.asked.prediction->tokens_per_s, a.asked.prediction->tokens_per_s);
  EXPECT_LT(b.num_trained, b.num_parameters / 20);
}

TEST(PlanCommand, RecomputesByLayerWhereThatIsFaster) {
  // With experts, the weights of a layer take long to upload, and the weights of several layers
  // need as much memory as the activations of one.
  ModelQuestion question{
      .model = "qwen3-30b-a3b", .num_gpus = 4, .asynchronous = true, .round_microbatches = 8, .rounds_per_step = 1};
  const PlanAnswer chosen = asked(question);
  question.recompute = RecomputeGrain::kStage;
  const PlanAnswer by_stage = asked(question);
  question.recompute = RecomputeGrain::kLayer;
  const PlanAnswer by_layer = asked(question);
  EXPECT_EQ(chosen.asked.prediction->recompute, RecomputeGrain::kLayer);
  EXPECT_EQ(by_stage.asked.prediction->recompute, RecomputeGrain::kStage);
  EXPECT_LT(chosen.asked.prediction->run.step_ms, 0.99 * by_stage.asked.prediction->run.step_ms);
  EXPECT_EQ(chosen.longest_sequence, by_stage.longest_sequence);
  EXPECT_EQ(chosen.longest_sequence, by_layer.longest_sequence);
  for (const PlanAnswer* answer : {&chosen, &by_stage, &by_layer}) {
    EXPECT_TRUE(fits_host(answer->setup, *answer->asked.prediction));
    EXPECT_LE(static_cast<double>(answer->asked.prediction->gpu.total()), answer->setup.gpu.usable_bytes());
    for (const PredictedRow& row : answer->by_fused) {
      EXPECT_EQ(row.prediction->recompute, answer->asked.prediction->recompute) << row.name;
    }
  }
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(answer_text(chosen), "each, recompute by layer\n")) << answer_text(chosen);
  EXPECT_TRUE(has(answer_text(by_stage), "each, recompute by stage\n"));
  EXPECT_TRUE(has(answer_text(chosen),
                  cat("--num-microbatches ", chosen.asked.prediction->round_microbatches, " --rounds-per-step ",
                      chosen.asked.prediction->rounds_per_step, " --recompute-grain layer --async\n")));
  EXPECT_EQ(nlohmann::json::parse(answer_json(chosen))["asked"]["recompute_grain"], "layer");
  EXPECT_EQ(nlohmann::json::parse(answer_json(by_stage))["asked"]["recompute_grain"], "stage");
}

TEST(PlanCommand, RecomputesByStageWhereTheGpusMemoryHoldsNoStage) {
  ModelQuestion question{.model = "smollm2-135m", .num_gpus = 2, .batch = 8};
  const RunPrediction chosen = predicted(question);
  question.recompute = RecomputeGrain::kStage;
  EXPECT_EQ(chosen.recompute, RecomputeGrain::kStage);
  EXPECT_EQ(chosen.run.step_ms, predicted(question).run.step_ms);
}

TEST(PlanCommand, RecomputesByStageWhereTheHostHoldsTooMuchAlready) {
  const TrainingSetup setup = setup_of({.model = "qwen3-30b-a3b",
                                        .num_gpus = 4,
                                        .host_bytes = std::uint64_t{500} << 30,
                                        .asynchronous = true,
                                        .round_microbatches = 8,
                                        .rounds_per_step = 1});
  const RunPrediction prediction = predict_run(setup, Effort::kFast);
  EXPECT_FALSE(fits_host(setup, prediction));
  EXPECT_EQ(prediction.recompute, RecomputeGrain::kStage);
}

// Returns the longest sequence for a plan with stages of four layers.
std::int64_t longest_in_stages_of_four(RecomputeGrain recompute) {
  TrainingSetup setup{.model = preset_config("qwen3-1.7b"), .gpu = gpu_profile("rtx4090").profile};
  Plan plan;
  plan.fused_start = 29;
  for (int first = 0; first < 29; first += 4) plan.forward.push_back({first, std::min(first + 4, 29)});
  for (int end = 29; end > 0; end -= 4) plan.backward.push_back({std::max(0, end - 4), end});
  validate_plan(plan, 30);
  while (static_cast<double>(gpu_memory(costs_of(setup, 1), plan, recompute).total()) <= setup.gpu.usable_bytes())
    setup.sequence_length += 256;
  return setup.sequence_length - 256;
}

TEST(GpuMemory, InStagesOfSeveralLayersLongerSequencesFitByLayer) {
  EXPECT_GT(longest_in_stages_of_four(RecomputeGrain::kStage), 2048);
  EXPECT_GT(longest_in_stages_of_four(RecomputeGrain::kLayer),
            longest_in_stages_of_four(RecomputeGrain::kStage) * 5 / 4);
}

TEST(LongestSequence, IsTheLastThatFits) {
  TrainingSetup setup{.model = preset_config("qwen3-1.7b"),
                      .gpu = gpu_profile("rtx4090").profile,
                      .server = server_profile("xeon6330-8gpu").profile,
                      .num_gpus = 8,
                      .host_bytes = 800e9};
  const std::int64_t longest = longest_sequence(setup);
  EXPECT_EQ(longest % 256, 0);
  setup.batch = 8;
  setup.round_microbatches = 8;
  setup.rounds_per_step = 1;
  setup.sequence_length = longest;
  EXPECT_NO_THROW((void)predict_run(setup, Effort::kFast));
  setup.sequence_length = longest + 256;
  expect_error(ExitCode::kNoResource, {"GPU"}, [&] { (void)predict_run(setup, Effort::kFast); });
}

TEST(PlanOptions, OfPlanAreRead) {
  const PlanOptions options = parse_plan_options({"plan",
                                                  "--model",
                                                  "qwen3-8b",
                                                  "--gpus",
                                                  "4",
                                                  "--gpu=rtx3090",
                                                  "--host-memory",
                                                  "768G",
                                                  "--sequence-length",
                                                  "4096",
                                                  "--batch-size",
                                                  "64",
                                                  "--lora-rank",
                                                  "32",
                                                  "--async",
                                                  "--microbatches",
                                                  "6",
                                                  "--rounds-per-step",
                                                  "2",
                                                  "--lora-experts",
                                                  "--freeze",
                                                  "norm",
                                                  "--fp16-accumulate",
                                                  "--pageable-weights",
                                                  "--max-fused-layers",
                                                  "3",
                                                  "--recompute-grain",
                                                  "layer",
                                                  "--server",
                                                  "s.json",
                                                  "--effort",
                                                  "fast",
                                                  "--json"});
  EXPECT_EQ(options.action, PlanOptions::Action::kPlan);
  const ModelQuestion& question = options.question;
  EXPECT_EQ(question.model, "qwen3-8b");
  EXPECT_EQ(question.num_gpus, 4);
  EXPECT_EQ(question.gpu, "rtx3090");
  EXPECT_EQ(question.server, "s.json");
  EXPECT_EQ(question.host_bytes, std::uint64_t{768} << 30);
  EXPECT_EQ(question.sequence_length, 4096);
  EXPECT_EQ(question.batch, 64);
  EXPECT_EQ(question.parts.lora.rank, 32);
  EXPECT_TRUE(question.parts.lora.on_experts);
  EXPECT_EQ(question.parts.freeze, "norm");
  EXPECT_TRUE(question.asynchronous && question.fp16_accumulate && question.pageable_weights);
  EXPECT_EQ(question.round_microbatches, 6);
  EXPECT_EQ(question.rounds_per_step, 2);
  EXPECT_EQ(question.max_fused_layers, 3);
  EXPECT_EQ(question.recompute, RecomputeGrain::kLayer);
  EXPECT_FALSE(parse_plan_options({"plan", "--model", "m"}).question.recompute) << "it is chosen";
  expect_error(ExitCode::kUsage, {"--recompute-grain layers", "did you mean layer?", "stage, layer"}, [] {
    (void)parse_plan_options({"plan", "--model", "m", "--recompute-grain", "layers"});
  });
  EXPECT_TRUE(options.json);
  for (const auto& [size, bytes] : {std::pair{"1.5T", 1.5 * 1024}, {"64GiB", 64.0}, {"512GB", 512.0}}) {
    EXPECT_EQ(
        static_cast<double>(parse_plan_options({"plan", "--model", "m", "--host-memory", size}).question.host_bytes),
        bytes * (1 << 30));
  }
  for (const char* size : {"", "G", "12", "-3G", "3X", "1e9G", "3GB2"}) {
    expect_error(ExitCode::kUsage, {"--host-memory", "as 768G"}, [&] {
      (void)parse_plan_options({"plan", "--model", "m", "--host-memory", size});
    });
  }
  EXPECT_EQ(question.num_nodes, 1);
  for (const auto& [network, gbs, latency_us] : {std::tuple{"25gbit", 3.125, 70.0},
                                                 {"100Gbit/s", 12.5, 70.0},
                                                 {"3.1GB/s", 3.1, 70.0},
                                                 {"10gbit,5us", 1.25, 5.0},
                                                 {"10gbit,0.5ms", 1.25, 500.0}}) {
    const ModelQuestion several =
        parse_plan_options({"plan", "--model", "m", "--nodes", "4", "--network", network}).question;
    EXPECT_EQ(several.num_nodes, 4);
    EXPECT_DOUBLE_EQ(several.network.gbs, gbs);
    EXPECT_DOUBLE_EQ(several.network.latency_us, latency_us);
  }
  EXPECT_DOUBLE_EQ(parse_plan_options({"plan", "--model", "m", "--nodes", "2"}).question.network.gbs, 3.125);
  for (const char* network : {"", "25", "gbit", "0gbit", "-1gbit", "25gbits", "25gbit,", "25gbit,70", "25gbit,-1us"}) {
    expect_error(ExitCode::kUsage, {"--network", "as 25gbit"}, [&] {
      (void)parse_plan_options({"plan", "--model", "m", "--nodes", "4", "--network", network});
    });
  }
  expect_error(ExitCode::kUsage, {"one node needs no network"}, [] {
    (void)parse_plan_options({"plan", "--model", "m", "--network", "25gbit"});
  });
  expect_error(ExitCode::kUsage, {"--nodes 1025", "from 1 to 1024"}, [] {
    (void)parse_plan_options({"plan", "--model", "m", "--nodes", "1025"});
  });
  expect_error(ExitCode::kUsage, {"--model is missing"}, [] { (void)parse_plan_options({"plan"}); });
  expect_error(ExitCode::kUsage, {"--gpus 0", "from 1 to 64"}, [] {
    (void)parse_plan_options({"plan", "--model", "m", "--gpus", "0"});
  });
}

}  // namespace
}  // namespace rp::test
