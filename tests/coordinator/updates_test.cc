#include "coordinator/updates/updates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "roundpipe/error.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/wait_limits.h"

namespace rp {
namespace {

constexpr std::uint32_t kNumGroups = 4;
constexpr std::int64_t kNumElements = 1 << 18;  // large enough for an update to be observed while it runs

std::unique_ptr<Store> new_store(bool tied, std::int64_t num_elements = kNumElements,
                                 std::uint32_t num_layers = kNumGroups, bool with_sums = false,
                                 std::uint32_t num_copies = 1) {
  std::vector<LayerRequest> layers(num_layers, LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers) {
    layer.parameters.push_back({.name = "w", .shape = {num_elements}, .tied_group = tied ? 0 : -1});
  }
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  return Store::create(settings, Catalogue::lay_out(layers, num_copies, with_sums));
}

float* weights(Store& store, std::uint32_t group) {
  return reinterpret_cast<float*>(
      store.parameters(store.catalogue().weight_groups()[GroupId(group)].parameter_offset[0]));
}

void fill_gradient(Store& store, std::uint32_t use, float value) {
  auto* gradient = reinterpret_cast<float*>(store.gradients(store.catalogue().uses()[UseId(use)].gradient_offset));
  const UseRecord& record = store.catalogue().uses()[UseId(use)];
  std::fill_n(gradient, store.catalogue().weight_groups()[record.group].num_elements, value);
}

// Accepts a task for each use, as the acceptance of a round does.
void accept_tasks(Updates& updates, const Store& store, Version version = Version(1)) {
  for (std::uint32_t use = 0; use < store.catalogue().uses().size(); ++use)
    updates.task_accepted(version, UseId(use), true);
}

// Returns the history after the step that makes `version`, which is the last step.
UpdateHistory history_of(Updates& updates, Version version) {
  updates.keep(version, std::make_shared<StateSnapshot>(std::vector<StateSnapshot::Part>(), [] { return UINT64_MAX; }));
  return updates.wait_kept();
}

double square_sum(float value) { return static_cast<double>(value) * static_cast<double>(value) * kNumElements; }

void expect_published(Store& store, std::uint32_t group, Version version) {
  EXPECT_EQ(store.published(GroupId(group)).wait_at_least(version, kLong), WaitResult::kReached) << "group " << group;
}

TEST(Updates, PublishAGroupAsSoonAsItsGradientIsCommittedAndNoOther) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  for (std::uint32_t group = kNumGroups; group-- > 0;) {  // in the order of a backward pass: the last layer first
    fill_gradient(*store, group, 1);
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, square_sum(1));
    expect_published(*store, group, Version(1));
    EXPECT_EQ(store->gradient_released(UseId(group)).wait_at_least(1, kLong), WaitResult::kReached);
    for (std::uint32_t other = 0; other < group; ++other) {
      EXPECT_EQ(store->published(GroupId(other)).observe(), Version(0));
      EXPECT_EQ(store->gradient_released(UseId(other)).observe(), 0U);
    }
  }
  updates.wait_applied(Version(1));
}

// A worker that waits for the weights of a slow update must not time out.
TEST(Updates, AreProgressOfTheRun) {
  for (const bool adds_rounds : {false, true}) {
    const auto store = new_store(false, kNumElements, kNumGroups, adds_rounds);
    Updates updates(*store, 0, {.adds_rounds = adds_rounds});
    accept_tasks(updates, *store);
    const auto outcome =
        updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
    for (std::uint32_t group = 0; group < kNumGroups; ++group) {
      fill_gradient(*store, group, 1);
      updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, square_sum(1));
    }
    updates.wait_applied(Version(1));
    EXPECT_EQ(store->progress(), (adds_rounds ? 3 : 1) * kNumGroups) << "each group is added, summed and updated";
  }
}

TEST(Updates, WaitForTheCallOfStep) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, 0);
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    EXPECT_EQ(store->published(GroupId(group)).observe(), Version(0));
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  updates.wait_applied(Version(1));
  EXPECT_EQ(updates.wait_norm(*outcome).grad_norm, 0);
}

// With clipping, the updates run in the order in which the next round needs the layers, whether the
// call of step() or the last gradient comes first.
TEST(Updates, WithClippingAreDoneInLayerOrder) {
  for (const bool is_called_first : {true, false}) {
    const auto store = new_store(false);
    Updates updates(*store, 0, {});
    accept_tasks(updates, *store);
    std::vector<std::thread> watchers;
    for (std::uint32_t group = 1; group < kNumGroups; ++group) {
      watchers.emplace_back([&store, group] {
        expect_published(*store, group, Version(1));
        for (std::uint32_t before = 0; before < group; ++before)
          EXPECT_EQ(store->published(GroupId(before)).observe(), Version(1));
      });
    }
    if (is_called_first)
      updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
    for (std::uint32_t group = kNumGroups; group-- > 0;)
      updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, 0);
    if (!is_called_first)
      updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
    for (std::thread& watcher : watchers) watcher.join();
    updates.wait_applied(Version(1));
  }
}

TEST(Updates, WithClippingScaleByTheNormOfAllGradients) {
  const auto store = new_store(false);
  AdamW rule;
  rule.learning_rate = 0.1;
  rule.epsilon = 1;  // makes the step depend on the gradient's size
  rule.weight_decay = 0;
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {rule}, .options = {.max_grad_norm = 1}});
  double total = 0;
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    const float value = static_cast<float>(group + 1);
    fill_gradient(*store, group, value);
    total += square_sum(value);
    for (std::uint32_t other = 0; other < kNumGroups; ++other)
      EXPECT_EQ(store->published(GroupId(other)).observe(), Version(0));
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, square_sum(value));
  }
  updates.wait_applied(Version(1));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(total));
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    const double g = (group + 1) / (std::sqrt(total) + 1e-6);
    EXPECT_NEAR(weights(*store, group)[0], -0.1 * g / (g + 1), 1e-6);
  }
}

// A gradient that is not finite must not change weights and moments.
TEST(Updates, WithClippingSkipAStepWhoseNormIsNotFinite) {
  const auto store = new_store(false, kNumElements, kNumGroups, false, 2);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  accept_tasks(updates, *store, Version(2));
  const WeightGroupRecord& group = store->catalogue().weight_groups()[GroupId(1)];
  const auto* copy = reinterpret_cast<const float*>(store->parameters(group.parameter_offset[1]));
  weights(*store, 1)[7] = 3;
  for (std::uint32_t b = 0; b < kNumGroups; ++b) {
    fill_gradient(*store, b, 1);
    updates.gradient_committed(Version(1), {.use = UseId(b), .released_after = 1}, b == 2 ? INFINITY : square_sum(1));
  }
  const auto outcome =
      updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
  updates.wait_applied(Version(1));
  EXPECT_TRUE(updates.wait_norm(*outcome).skipped);
  EXPECT_EQ(copy[7], 3) << "the other working copy is the new version";
  EXPECT_EQ(store->state(group.moment1_offset)[7], 0);
  for (std::uint32_t b = 0; b < kNumGroups; ++b) {
    EXPECT_EQ(store->published(GroupId(b)).observe(), Version(1));
    EXPECT_EQ(store->gradient_released(UseId(b)).observe(), 1U);
    updates.gradient_committed(Version(2), {.use = UseId(b), .released_after = 2}, square_sum(1));
  }
  const auto next = updates.accept_step(Version(2), Version(1), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
  updates.wait_applied(Version(2));
  EXPECT_FALSE(updates.wait_norm(*next).skipped);
  EXPECT_NE(store->state(group.moment1_offset)[7], 0);
}

// An evaluation may still read the copy that the update overwrites.
TEST(Updates, WaitForTasksWithoutGradientsToo) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  updates.task_accepted(Version(1), UseId(2), true);
  updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, 0);
  for (const std::uint32_t group : {0U, 1U, 3U}) expect_published(*store, group, Version(1));
  EXPECT_EQ(store->published(GroupId(2)).observe(), Version(0));
  updates.task_committed(Version(1), UseId(2));
  updates.wait_applied(Version(1));
}

TEST(Updates, LeaveFrozenGroupsAndOtherPipelinesAlone) {
  std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
  layers[0].parameters.push_back({.name = "w", .shape = {64}});
  layers[1].parameters.push_back({.name = "f", .shape = {64}, .is_trained = false});
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store =
      Store::create(settings, Catalogue::lay_out({{.name = "a", .layers = layers}, {.name = "b", .layers = layers}}));
  Updates updates(*store, 1, {});
  updates.task_accepted(Version(1), UseId(2), true);
  updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  updates.gradient_committed(Version(1), {.use = UseId(2), .released_after = 1}, 0);
  updates.wait_applied(Version(1));
  for (const std::uint32_t group : {0U, 1U, 3U}) EXPECT_EQ(store->published(GroupId(group)).observe(), Version(0));
  EXPECT_EQ(store->published(GroupId(2)).observe(), Version(1));
}

TEST(Updates, OfATiedGroupWaitForAllItsUses) {
  const auto store = new_store(true, kNumElements, 3);
  ASSERT_EQ(store->catalogue().weight_groups().size(), 1U);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  for (std::uint32_t use = 3; use-- > 0;) {
    EXPECT_EQ(store->published(GroupId(0)).observe(), Version(0));
    fill_gradient(*store, use, 2);
    updates.gradient_committed(Version(1), {.use = UseId(use), .released_after = 1},
                               0);  // the workers' square sums of a tied weight group are not used
  }
  updates.wait_applied(Version(1));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(square_sum(6)));
  for (std::uint32_t use = 0; use < 3; ++use) EXPECT_EQ(store->gradient_released(UseId(use)).observe(), 1U);
}

TEST(Updates, OfSeveralRoundsGiveAGradientBackWhenItIsAdded) {
  const auto store = new_store(false, kNumElements, 1, true);
  Updates updates(*store, 0, {.adds_rounds = true});
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  for (std::uint64_t round = 0; round < 3; ++round) {
    fill_gradient(*store, 0, static_cast<float>(round + 1));
    updates.gradient_committed(Version(1), {.use = UseId(0), .round = round, .released_after = round + 1}, 0);
    EXPECT_EQ(store->gradient_released(UseId(0)).wait_at_least(round + 1, kLong), WaitResult::kReached);
    EXPECT_EQ(store->published(GroupId(0)).observe(), Version(0));
  }
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  updates.wait_applied(Version(1));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(square_sum(6)));
}

// In an asynchronous run, gradients of the next step are committed before this step is applied.
TEST(Updates, OfSeveralRoundsKeepTheSumOfAStepUntilItIsApplied) {
  const auto store = new_store(false, kNumElements, 1, true);
  Updates updates(*store, 0, {.adds_rounds = true});
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store, Version(2));
  accept_tasks(updates, *store, Version(2));
  fill_gradient(*store, 0, 1);
  updates.gradient_committed(Version(1), {.use = UseId(0), .released_after = 1}, 0);
  ASSERT_EQ(store->gradient_released(UseId(0)).wait_at_least(1, kLong), WaitResult::kReached);
  updates.gradient_committed(Version(1), {.use = UseId(0), .round = 1, .released_after = 2}, 0);
  ASSERT_EQ(store->gradient_released(UseId(0)).wait_at_least(2, kLong), WaitResult::kReached);
  fill_gradient(*store, 0, 5);
  updates.gradient_committed(Version(2), {.use = UseId(0), .released_after = 3}, 0);
  const auto first = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
  ASSERT_EQ(store->gradient_released(UseId(0)).wait_at_least(3, kLong), WaitResult::kReached);
  updates.gradient_committed(Version(2), {.use = UseId(0), .round = 1, .released_after = 4}, 0);
  const auto second =
      updates.accept_step(Version(2), Version(1), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
  updates.wait_applied(Version(2));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*first).grad_norm, std::sqrt(square_sum(2)));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*second).grad_norm, std::sqrt(square_sum(10)));
}

TEST(Updates, OfAModelWithoutParametersAreDoneAtOnce) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(settings, Catalogue::lay_out({{.name = "empty"}}, 1, false));
  Updates updates(*store, 0, {});
  for (const Version version : NumberRange(Version(1), Version(4))) {
    const auto outcome =
        updates.accept_step(version, version - 1, {.rules = {AdamW{}}, .options = {.max_grad_norm = 1}});
    updates.wait_applied(version);
    EXPECT_EQ(updates.wait_norm(*outcome).grad_norm, 0);
  }
}

// If several groups may be updated, the first one in layer order must be next, since the next round
// needs it first.
TEST(Updates, WithoutClippingTakeTheFirstLayerOfThoseThatAreReady) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  std::vector<std::thread> watchers;
  for (std::uint32_t group = 1; group < kNumGroups; ++group) {
    watchers.emplace_back([&store, group] {
      expect_published(*store, group, Version(1));
      for (std::uint32_t before = 0; before < group; ++before)
        EXPECT_EQ(store->published(GroupId(before)).observe(), Version(1));
    });
  }
  for (std::uint32_t group = kNumGroups; group-- > 0;)
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, 0);
  updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  for (std::thread& watcher : watchers) watcher.join();
}

TEST(Updates, GoOnFromALoadedState) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  updates.restart_at(Version(41), {});
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    EXPECT_EQ(store->published(GroupId(group)).observe(), Version(41));
  accept_tasks(updates, *store, Version(42));
  updates.accept_step(Version(42), Version(41), {.rules = {AdamW{}}});
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    updates.gradient_committed(Version(42), {.use = UseId(group), .released_after = 1}, 0);
  updates.wait_applied(Version(42));
}

TEST(Updates, ThatAreStoppedGiveTheFirstErrorToAllWhoWait) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  std::thread waiter([&] { expect_error(ExitCode::kHang, {"first"}, [&] { updates.wait_applied(Version(1)); }); });
  updates.stop(std::make_exception_ptr(Error(ExitCode::kHang, "first")));
  updates.stop(std::make_exception_ptr(Error(ExitCode::kHang, "second")));
  waiter.join();
  expect_error(ExitCode::kHang, {"first"}, [&] { (void)updates.wait_norm(*outcome); });
}

// Only the rule of its own group changes a parameter.
TEST(Updates, ByGroupsFollowTheRuleOfEachParameter) {
  std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers)
    layer.parameters = {{.name = "w", .shape = {100, 2}}, {.name = "b", .shape = {3}}, {.name = "c", .shape = {70}}};
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(settings, Catalogue::lay_out(layers, 1, false));
  const std::vector<ParameterGroup> groups = {
      {.contains = [](const ParameterInfo& info) { return info.shape.size() == 2; }, .rule = Sgd{.learning_rate = 1}},
      {.contains = [](const ParameterInfo& info) { return info.name == "1.b"; }, .rule = Sgd{.learning_rate = 10}},
      {.contains = {}, .rule = Sgd{.learning_rate = 100}}};
  StepRequest request{.rules = {}, .spans = group_parameters(store->catalogue(), 0, groups)};
  for (const ParameterGroup& group : groups) request.rules.push_back(group.rule);
  EXPECT_EQ(request.spans.at(GroupId(0)).size(), 2U) << "b and c of layer 0 are alike";
  EXPECT_EQ(request.spans.at(GroupId(1)).size(), 3U);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  for (std::uint32_t group = 0; group < 2; ++group) {
    fill_gradient(*store, group, 1);
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, 0);
  }
  updates.accept_step(Version(1), Version(0), std::move(request));
  updates.wait_applied(Version(1));
  for (const TensorRecord& tensor : store->catalogue().tensors()) {
    const std::uint32_t group = store->catalogue().uses()[tensor.use].group.value();
    const std::string name = tensor.name.data();
    const float expected = name == "w" ? -1 : name == "b" && group == 1 ? -10 : -100;
    for (std::uint64_t i = 0; i < tensor.desc.bytes() / 4; ++i) {
      ASSERT_EQ(weights(*store, group)[tensor.element_offset + i], expected) << name << " of layer " << group;
    }
  }
  expect_error(ExitCode::kUsage, {"0.b", "no group"},
               [&] { (void)group_parameters(store->catalogue(), 0, {groups[0]}); });
}

// Adam's bias corrections count the steps that changed weights.
TEST(Updates, CountOnlyStepsThatAreNotSkipped) {
  const auto store = new_store(false, kNumElements, 1);
  Updates updates(*store, 0, {});
  for (const Version version : NumberRange(Version(1), Version(4))) {
    accept_tasks(updates, *store, version);
    fill_gradient(*store, 0, 1);
    updates.gradient_committed(version, {.use = UseId(0), .released_after = version.value()},
                               version == Version(2) ? NAN : 1);
    const auto outcome =
        updates.accept_step(version, version - 1, {.rules = {AdamW{}}, .options = {.skip_nonfinite = true}});
    updates.wait_applied(version);
    EXPECT_EQ(updates.wait_norm(*outcome).skipped, version == Version(2));
    EXPECT_EQ(updates.wait_norm(*outcome).nonfinite_layers,
              version == Version(2) ? std::vector<int>{0} : std::vector<int>{});
  }
  EXPECT_EQ(history_of(updates, Version(3)).num_applied, 2U);
  // Two steps of Adam with the same gradient each change a weight by the learning rate.
  EXPECT_NEAR(weights(*store, 0)[0], -2e-3, 1e-6);
}

// A saver reads the state after the requested step, even if later steps are accepted before it
// begins to read.
TEST(Updates, LeaveAKeptVersionAsItIs) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  std::vector<StateSnapshot::Part> parts;
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    parts.push_back(
        {.group = GroupId(group), .memory = std::as_bytes(std::span(weights(*store, group), kNumElements))});
  }
  const auto snapshot = std::make_shared<StateSnapshot>(parts, [] { return UINT64_MAX; });
  const auto step = [&](Version version) {
    accept_tasks(updates, *store, version);
    for (std::uint32_t group = 0; group < kNumGroups; ++group) {
      EXPECT_EQ(store->gradient_released(UseId(group)).wait_at_least(version.value() - 1, kLong),
                WaitResult::kReached);  // the step before has read its gradient
      fill_gradient(*store, group, 1);
      updates.gradient_committed(version, {.use = UseId(group), .released_after = version.value()}, 1);
    }
    updates.accept_step(version, version - 1, {.rules = {AdamW{.learning_rate = 1, .weight_decay = 0}}});
  };
  step(Version(1));
  updates.keep(Version(1), snapshot);
  step(Version(2));
  step(Version(3));
  updates.wait_applied(Version(3));
  EXPECT_EQ(updates.wait_kept().num_applied, 1U);
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    EXPECT_NEAR(weights(*store, group)[kNumElements - 1], -3, 1e-4);
    EXPECT_TRUE(snapshot->read_next([&](std::span<const std::byte> piece) {
      float first = 0;
      std::memcpy(&first, piece.data(), sizeof first);
      EXPECT_NEAR(first, -1, 1e-4) << "group " << group;
    }));
  }
}

TEST(Updates, ThatStopTellWhoWaitsForAKeptVersion) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  updates.keep(Version(1),
               std::make_shared<StateSnapshot>(std::vector<StateSnapshot::Part>(), [] { return UINT64_MAX; }));
  std::thread stop([&] { updates.stop(std::make_exception_ptr(Error(ExitCode::kUserError, "worker 1 is gone"))); });
  EXPECT_THROW((void)updates.wait_kept(), Error);
  stop.join();
}

TEST(Updates, WithoutABarrierTellOfGradientsThatAreNotFinite) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  for (std::uint32_t group = 0; group < kNumGroups; ++group)
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, group % 2 == 1 ? INFINITY : 1);
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {AdamW{}}});
  EXPECT_FALSE(updates.wait_norm(*outcome).skipped);
  EXPECT_EQ(updates.wait_norm(*outcome).nonfinite_layers, (std::vector<int>{1, 3}));
}

TEST(Updates, TellALayerOnceThatHasATiedParameterAndOneOfItsOwn) {
  std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers) {
    layer.parameters = {{.name = "own", .shape = {8}}, {.name = "tied", .shape = {8}, .tied_group = 0}};
  }
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(settings, Catalogue::lay_out(layers, 1, false));
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  for (std::uint32_t use = 0; use < 4; ++use) {
    fill_gradient(*store, use, INFINITY);
    updates.gradient_committed(Version(1), {.use = UseId(use), .released_after = 1}, INFINITY);
  }
  const auto outcome = updates.accept_step(Version(1), Version(0), {.rules = {Sgd{.learning_rate = 1}}});
  EXPECT_EQ(updates.wait_norm(*outcome).nonfinite_layers, (std::vector<int>{0, 1}));
}

TEST(Updates, WithLossScalingUnscaleSkipAndGrow) {
  const auto store = new_store(false, kNumElements, 1);
  Updates updates(*store, 0,
                  {.loss_scaling = LossScaling{
                       .initial_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2}});
  LossScaleRecord& record = store->loss_scale(0);
  const auto scale_of = [&](Version version) { return record.scales[LossScaleRecord::place_of(version)]; };
  EXPECT_EQ(scale_of(Version(0)), 8);
  Version version{};
  // Makes the step after `version` with gradients of `value` times the scale.
  const auto step = [&](float value) {
    const double scale = scale_of(version);
    const float gradient = value * static_cast<float>(scale);
    accept_tasks(updates, *store, ++version);
    fill_gradient(*store, 0, gradient);
    updates.gradient_committed(version, {.use = UseId(0), .released_after = version.value()}, square_sum(gradient));
    const auto outcome = updates.accept_step(version, version - 1, {.rules = {Sgd{.learning_rate = 1}}});
    expect_published(*store, 0, version);
    EXPECT_GE(record.version.observe(), version) << "a worker that sees the weights must see their scale";
    updates.wait_applied(version);
    EXPECT_EQ(updates.wait_norm(*outcome).loss_scale, scale);
    EXPECT_EQ(updates.wait_norm(*outcome).skipped, !std::isfinite(value));
    if (std::isfinite(value)) {
      EXPECT_NEAR(updates.wait_norm(*outcome).grad_norm, std::sqrt(square_sum(value)), 1e-3);
    }
  };
  step(1);
  EXPECT_EQ(weights(*store, 0)[7], -1);
  EXPECT_EQ(scale_of(Version(1)), 8);
  step(INFINITY);
  EXPECT_EQ(weights(*store, 0)[7], -1);
  EXPECT_EQ(scale_of(Version(2)), 2) << "an overflow shrinks the scale, and the count of good steps begins again";
  step(1);
  EXPECT_EQ(scale_of(Version(3)), 2);
  step(1);
  EXPECT_EQ(scale_of(Version(4)), 8);
  EXPECT_EQ(weights(*store, 0)[7], -3);
  const UpdateHistory history = history_of(updates, Version(4));
  EXPECT_EQ(history.num_applied, 3U);
  EXPECT_EQ(history.loss_scale.scale, 8);
  EXPECT_EQ(history.loss_scale.previous_scale, 2);
  updates.restart_at(Version(9), history);
  EXPECT_EQ(scale_of(Version(9)), 8);
  EXPECT_EQ(scale_of(Version(8)), 2);
}

TEST(Updates, ByAFunctionGiveItTheGradientsAndPublishWhatItMakes) {
  const auto store = new_store(false);
  Updates updates(*store, 0, {});
  accept_tasks(updates, *store);
  double total = 0;
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    const float value = static_cast<float>(group + 1);
    fill_gradient(*store, group, value);
    updates.gradient_committed(Version(1), {.use = UseId(group), .released_after = 1}, square_sum(value));
    total += square_sum(value);
  }
  std::vector<float> seen;
  const auto function = [&](Version version, bool skipped, const GradientWriter& write_gradient) {
    EXPECT_EQ(version, Version(1));
    EXPECT_FALSE(skipped);
    for (std::uint32_t group = 0; group < kNumGroups; ++group) {
      EXPECT_EQ(store->published(GroupId(group)).observe(), Version(0));
      std::vector<float> gradient(kNumElements);
      write_gradient(GroupId(group), gradient.data());
      seen.push_back(gradient.back());
      weights(*store, group)[0] = 42;
    }
  };
  updates.accept_step(Version(1), Version(0), {.rules = {}, .function = function, .options = {.max_grad_norm = 1}});
  updates.wait_applied(Version(1));
  for (std::uint32_t group = 0; group < kNumGroups; ++group) {
    EXPECT_EQ(seen.at(group), static_cast<float>(group + 1) * static_cast<float>(1 / (std::sqrt(total) + 1e-6)));
    EXPECT_EQ(weights(*store, group)[0], 42);
    EXPECT_EQ(store->published(GroupId(group)).observe(), Version(1));
    EXPECT_EQ(store->gradient_released(UseId(group)).observe(), 1U);
  }
}

TEST(Updates, ByAFunctionThatThrowsTellTheRun) {
  const auto store = new_store(false, kNumElements, 1);
  Updates* stopped = nullptr;
  Updates updates(*store, 0, {.report_failure = [&](std::exception_ptr error) { stopped->stop(std::move(error)); }});
  stopped = &updates;
  accept_tasks(updates, *store);
  updates.gradient_committed(Version(1), {.use = UseId(0), .released_after = 1}, 1);
  updates.accept_step(Version(1), Version(0), {.rules = {}, .function = [](Version, bool, const GradientWriter&) {
                                                 throw Error(ExitCode::kUserError, "no idea what to do");
                                               }});
  expect_error(ExitCode::kUserError, {"no idea"}, [&] { updates.wait_applied(Version(1)); });
  EXPECT_EQ(store->published(GroupId(0)).observe(), Version(0));
}

}  // namespace
}  // namespace rp
