#include "coordinator/pipeline_state.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace rp {
namespace {

constexpr RoundTraits kRound{};
constexpr RoundTraits kGraph{.kind = RoundKind::kForward, .keeps_graph = true};
constexpr RoundTraits kEvaluation{.kind = RoundKind::kForward, .mode = RoundMode::kEvaluate};

std::shared_ptr<Round> take(PipelineState& state, const RoundTraits& traits) {
  std::shared_ptr<Round> round = state.next_round(traits, {.first_layer = CatalogueLayer(7), .num_layers = 3});
  state.count(traits, true);
  return round;
}

TEST(PipelineState, NumbersRoundsOfTrainingAndEvaluationsApart) {
  PipelineState state;
  EXPECT_EQ(take(state, kRound)->number, 0U);
  EXPECT_EQ(take(state, kEvaluation)->number, kFirstEvaluation);
  EXPECT_EQ(take(state, kGraph)->number, 1U);
  EXPECT_EQ(take(state, kEvaluation)->number, kFirstEvaluation + 1);
  EXPECT_EQ(take(state, kRound)->number, 2U);
  EXPECT_EQ(state.rounds_since_step, 2) << "a graph counts when it goes back";
  state.count_backward(true);
  EXPECT_EQ(state.rounds_since_step, 3);
}

TEST(PipelineState, ARoundWithGradientsHasAnAttemptOfItsOwn) {
  PipelineState state;
  EXPECT_EQ(take(state, kRound)->attempt, 0U);
  EXPECT_EQ(take(state, kRound)->attempt, 1U);
  state.restart_at(0, 0, Version(100));
  EXPECT_EQ(take(state, kRound)->attempt, 2U) << "also after a state was loaded";
}

TEST(PipelineState, ASynchronousRoundUsesWhatTheLastStepMade) {
  PipelineState state;
  for (std::uint64_t step = 0; step < 4; ++step) {
    const std::shared_ptr<Round> round = take(state, kRound);
    EXPECT_EQ(round->step, step + 1);
    EXPECT_EQ(round->version, Version(step));
    EXPECT_EQ(round->next_version, Version(step + 1));
    EXPECT_EQ(state.count_step({}), Version(step));
    EXPECT_EQ(state.version(), Version(step + 1));
  }
}

TEST(PipelineState, AnAsynchronousRoundUsesTheStepBefore) {
  PipelineState state;
  state.settings.asynchronous = true;
  for (const std::uint64_t used : {0U, 0U, 1U, 2U}) {
    EXPECT_EQ(take(state, kRound)->version, Version(used));
    EXPECT_EQ(state.count_step({}), Version(used));
  }
  EXPECT_EQ(take(state, kEvaluation)->version, Version(3));
  state.evaluates_newest = true;
  EXPECT_EQ(take(state, kEvaluation)->version, Version(4));
  EXPECT_EQ(take(state, kRound)->version, Version(3)) << "training does not";
  (void)state.count_step({});
  EXPECT_EQ(take(state, kEvaluation)->version, Version(4)) << "not after a step";
}

TEST(PipelineState, VersionsGoOnWhenAnEarlierStateIsLoaded) {
  PipelineState state;
  state.settings.asynchronous = true;
  for (int step = 0; step < 5; ++step) {
    (void)take(state, kRound);
    (void)state.count_step({});
  }
  state.restart_at(2, 2, Version(7));
  EXPECT_EQ(state.version(), Version(7));
  const std::shared_ptr<Round> round = take(state, kRound);
  EXPECT_EQ(round->number, 2U);
  EXPECT_EQ(round->step, 3U);
  EXPECT_EQ(round->version, Version(6));
  EXPECT_EQ(round->next_version, Version(8));
}

// Nodes compare this hash. Whatever changes what a step does to the weights must be in it.
TEST(PipelineState, HashesEveryArgumentOfAStep) {
  const StepRequest step{.rules = {AdamW{}, Sgd{}}, .spans = {{GroupId(3), {{0, 8, 0}, {8, 10, 1}}}}};
  using Change = void (*)(StepRequest&);
  const std::vector<Change> changes = {
      [](StepRequest&) {},
      [](StepRequest& s) { std::get<AdamW>(s.rules[0]).learning_rate = 2; },
      [](StepRequest& s) { std::get<AdamW>(s.rules[0]).beta1 = 0.5; },
      [](StepRequest& s) { std::get<AdamW>(s.rules[0]).beta2 = 0.5; },
      [](StepRequest& s) { std::get<AdamW>(s.rules[0]).epsilon = 0.5; },
      [](StepRequest& s) { std::get<AdamW>(s.rules[0]).weight_decay = 0.5; },
      [](StepRequest& s) { s.rules[0] = Adam{}; },
      [](StepRequest& s) { std::get<Sgd>(s.rules[1]).learning_rate = 2; },
      [](StepRequest& s) { std::get<Sgd>(s.rules[1]).momentum = 0.5; },
      [](StepRequest& s) { std::get<Sgd>(s.rules[1]).dampening = 0.5; },
      [](StepRequest& s) { std::get<Sgd>(s.rules[1]).weight_decay = 0.5; },
      [](StepRequest& s) { std::get<Sgd>(s.rules[1]).nesterov = true; },
      [](StepRequest& s) { s.rules.pop_back(); },
      [](StepRequest& s) { s.spans.begin()->second[0].end = s.spans.begin()->second[1].begin = 7; },
      [](StepRequest& s) { s.spans.begin()->second[1].group = 0; },
      [](StepRequest& s) {
        s.spans = {{GroupId(4), s.spans.begin()->second}};
      },
      [](StepRequest& s) { s.options.max_grad_norm = 1; },
      [](StepRequest& s) { s.options.max_grad_value = 1; },
      [](StepRequest& s) { s.options.skip_nonfinite = true; },
  };
  std::map<std::uint64_t, std::size_t> change_of_hash;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    StepRequest changed = step;
    changes[i](changed);
    PipelineState state;
    (void)state.count_step(changed);
    const auto [same, is_new] = change_of_hash.emplace(state.calls.value(), i);
    EXPECT_TRUE(is_new) << "changes " << same->second << " and " << i << " have the same hash";
  }
}

TEST(PipelineState, HashesTheStagesWhoseGradientsAreExchanged) {
  const auto hash_of = [](const std::string& plan, const RoundTraits& traits) {
    PipelineState state;
    std::shared_ptr<Round> round = take(state, traits);
    round->slots = slots_of(parse_plan(plan, 3), 3, 0);
    state.count_exchanges(*round);
    (void)state.count_step({});
    return state.calls.value();
  };
  const std::string short_stages = "forward 0 1 | fused 2 | backward 1 0";
  const std::string long_stages = "forward 0-1 | fused 2 | backward 0-1";
  EXPECT_EQ(hash_of(short_stages, kRound), hash_of(short_stages, kRound));
  EXPECT_NE(hash_of(short_stages, kRound), hash_of(long_stages, kRound));
  EXPECT_EQ(hash_of(short_stages, kEvaluation), hash_of(long_stages, kEvaluation)) << "no gradients";
}

}  // namespace
}  // namespace rp
