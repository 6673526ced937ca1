#include "planner/nodes_report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/nodes.h"
#include "common/text.h"
#include "model_files/profile_file.h"
#include "planner/plan_report.h"
#include "tests/common/expect_refusal.h"

namespace rp::test {
namespace {

constexpr NetworkProfile kTenGigabit{.gbs = 1.25, .latency_us = 70};

ModelQuestion on_nodes(int num_nodes, NetworkProfile network = kTenGigabit) {
  return {.model = "qwen3-0.6b",
          .num_gpus = 2,
          .num_nodes = num_nodes,
          .network = network,
          .sequence_length = 1024,
          .batch = 64};
}
PlanAnswer answer_of(const ModelQuestion& question) { return answer_question(question, Effort::kFast); }

TEST(NodesReport, HasTheStepTheNetworkAndTheSpeedOnFewerNodes) {
  const PlanAnswer answer = answer_of(on_nodes(4));
  ASSERT_TRUE(answer.asked.prediction.has_value()) << answer.asked.problem;
  const RunPrediction& prediction = *answer.asked.prediction;
  EXPECT_EQ(prediction.num_nodes, 4);
  EXPECT_EQ(prediction.rounds_per_step % 4, 0);
  EXPECT_NEAR(prediction.tokens_per_s, 64 * 1024 * 1000 / prediction.run.step_ms, 1e-6 * prediction.tokens_per_s);
  const double gradients = 2.0 * static_cast<double>(answer.num_trained);
  // With tied embeddings there is a gradient of each use.
  const double uses = 2.0 * 151'936 * 1024;
  const double rounds = prediction.rounds_per_step / 4.0;
  const double bytes = (rounds * (gradients + uses) + gradients) * 3 / 4;
  EXPECT_NEAR(prediction.run.sent_bytes, bytes, 0.03 * bytes);
  EXPECT_NEAR(prediction.run.received_bytes, bytes, 0.03 * bytes);
  EXPECT_GE(prediction.run.step_ms, 0.97 * bytes / 1.25e6) << "the bytes of a step at 1.25 GB/s";
  EXPECT_GT(prediction.run.step_ms, prediction.without_network_ms);

  ASSERT_EQ(answer.by_nodes.size(), 3U) << "1, 2 and 4 nodes";
  for (std::size_t i = 0; i < 3; ++i) {
    const RunPrediction& of_fewer = *answer.by_nodes[i].prediction;
    EXPECT_EQ(of_fewer.num_nodes, 1 << i);
    EXPECT_EQ(of_fewer.rounds_per_step, prediction.rounds_per_step) << "the bits are the same";
    EXPECT_EQ(of_fewer.round_microbatches, prediction.round_microbatches);
    EXPECT_LE(nodes_efficiency(of_fewer, *answer.by_nodes[0].prediction), 1.01);
    EXPECT_EQ(of_fewer.host.received_gradients > 0, i > 0);
  }
  EXPECT_LT(answer.by_nodes[2].prediction->host.optimizer_state,
            answer.by_nodes[0].prediction->host.optimizer_state / 3);

  const std::string text = answer_text(answer);
  for (const char* part :
       {"4 nodes of 2 x rtx4090", "each host, GiB", "gradients of other nodes", "Network: each node sends ",
        " exposed\n", "4 nodes are ", " times as fast as 1 node with the same step (efficiency ",
        "nodes, the same step", "GPUs of each node", "waiting for updates of all nodes", "--rounds-per-step 4"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  const nlohmann::json json = nlohmann::json::parse(answer_json(answer));
  EXPECT_EQ(json["nodes"], 4);
  EXPECT_EQ(json["asked"]["nodes"], 4);
  EXPECT_EQ(json["asked"]["network"]["sent_bytes"].get<double>(), prediction.run.sent_bytes);
  EXPECT_NEAR(json["asked"]["network"]["exposed_ms"].get<double>(),
              prediction.run.step_ms - prediction.without_network_ms, 1e-6);
  EXPECT_EQ(json["by_nodes"].size(), 3U);
  EXPECT_EQ(json["by_nodes"][0]["efficiency"], 1.0);
  EXPECT_FALSE(json["by_nodes"][0].contains("network")) << "one node has none";
}

// By computing alone, other splits are the fastest.
TEST(NodesReport, TheProposedSplitIsTheFastestOneWithTheNetwork) {
  TrainingSetup setup = setup_of(on_nodes(4));
  setup.num_gpus = 4;
  setup.sequence_length = 2048;
  setup.batch = 256;
  const double proposed = predict_run(setup, Effort::kFast).tokens_per_s;
  for (const int microbatches : {4, 5, 6, 8, 16}) {
    for (const int rounds : {4, 8, 16}) {
      setup.round_microbatches = microbatches;
      setup.rounds_per_step = rounds;
      EXPECT_GE(proposed, 0.99 * predict_run(setup, Effort::kFast).tokens_per_s) << microbatches << ", " << rounds;
    }
  }
}

// The plan that is the fastest without the network would make the step longer.
TEST(NodesReport, TheProposedPlanIsSearchedWithTheNetwork) {
  TrainingSetup setup = setup_of(on_nodes(4, {.gbs = 3.125, .latency_us = 70}));
  setup.sequence_length = 2048;
  setup.round_microbatches = 8;
  setup.rounds_per_step = 4;
  setup.recompute = RecomputeGrain::kStage;
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    setup.asynchronous = asynchronous;
    TrainingSetup without = setup;
    without.network = {};
    const RunPrediction with = predict_run(setup, Effort::kFast);
    EXPECT_LE(with.run.step_ms, (asynchronous ? 1.001 : 0.97) *
                                    predict_plan(setup, predict_run(without, Effort::kFast).plan).run.step_ms);
    EXPECT_DOUBLE_EQ(predict_plan(setup, with.plan).run.step_ms, with.run.step_ms) << "as a run predicts its plan";
  }
}

TEST(NodesReport, OfOneNodeIsNotPrinted) {
  const PlanAnswer answer = answer_of(on_nodes(1));
  EXPECT_TRUE(answer.by_nodes.empty());
  EXPECT_EQ(answer.asked.prediction->without_network_ms, answer.asked.prediction->run.step_ms);
  EXPECT_EQ(answer_text(answer).find("etwork"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(answer_json(answer)).contains("by_nodes"));
}

TEST(NodesReport, AFasterNetworkExposesLess) {
  double before = 1e300;
  for (const double gbs : {0.3, 1.25, 12.5, 1e6}) {
    const PlanAnswer answer = answer_of([&] {
      ModelQuestion question = on_nodes(4, {.gbs = gbs});
      question.round_microbatches = 8;
      question.rounds_per_step = 4;
      return question;
    }());
    const RunPrediction& prediction = *answer.asked.prediction;
    const double exposed = prediction.run.step_ms - prediction.without_network_ms;
    EXPECT_LE(exposed, before + 1e-6);
    if (gbs == 1e6) {
      EXPECT_LE(exposed, 0.001 * prediction.run.step_ms);
      EXPECT_EQ(network_text(answer).find("to hide more of it"), std::string::npos);
    } else if (gbs < 1) {
      EXPECT_NE(network_text(answer).find("to hide more of it: --async"), std::string::npos);
    }
    before = exposed;
  }
}

TEST(NodesReport, DrawsBothDirectionsOfTheNetwork) {
  const PlanAnswer answer = answer_question(on_nodes(2), Effort::kFast, true);
  const auto page = answer_page(answer);
  const TimelineSection& section = page.sections.front();
  ASSERT_EQ(section.rows.size(), 5U) << "two GPUs, the updates, and two directions";
  for (const std::size_t row : {3, 4}) {
    const auto& spans = section.rows[row].compute;
    ASSERT_FALSE(spans.empty());
    for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].start_ms, spans[i - 1].end_ms - 1e-6);
  }
  EXPECT_EQ(section.rows[3].name, "network out");
}

TEST(NodesReport, RefusesFewerRoundsOrSequencesThanNodes) {
  ModelQuestion question = on_nodes(4);
  question.rounds_per_step = 2;
  expect_error(ExitCode::kUsage, {"2 rounds", "4 nodes", "--rounds-per-step"}, [&] { (void)answer_of(question); });
  question.rounds_per_step = 0;
  question.batch = 3;
  const PlanAnswer few = answer_of(question);
  EXPECT_NE(few.asked.problem.find("a step of 3 sequences cannot be cut into 4 times"), std::string::npos)
      << few.asked.problem;
  EXPECT_NE(few.asked.problem.find("fewer nodes"), std::string::npos);
  question.batch = 10;
  question.round_microbatches = 2;
  question.rounds_per_step = 5;
  EXPECT_EQ(answer_of(question).asked.prediction->rounds_per_step, 5) << "the first node has two of the rounds";
}

// One node is simulated, whatever their number; only the rows for fewer nodes become more.
TEST(NodesReport, AThousandNodesArePlannedAsFastAsFour) {
  const auto seconds_for = [](int num_nodes) {
    ModelQuestion question = on_nodes(num_nodes);
    question.batch = 8 * num_nodes;
    question.round_microbatches = 4;
    question.rounds_per_step = num_nodes;
    const auto begin = std::chrono::steady_clock::now();
    const PlanAnswer answer = answer_of(question);
    EXPECT_TRUE(answer.asked.prediction.has_value()) << answer.asked.problem;
    EXPECT_LE(answer.by_nodes.size(), 11U);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double four = seconds_for(4), thousand = seconds_for(1000);
  RecordProperty("four_ms", static_cast<int>(four * 1000));
  RecordProperty("thousand_ms", static_cast<int>(thousand * 1000));
  // log2 1000 is five times log2 4. The rest is for a machine that does other things, too.
  EXPECT_LT(thousand, 3 * 5 * four);
}

}  // namespace
}  // namespace rp::test
