#include "coordinator/updates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

constexpr std::atomic<bool> kNeverStop{false};
constexpr WaitLimits kLong{&kNeverStop, 20 * kNsPerSecond};
constexpr std::uint32_t kNumBlocks = 4;
constexpr std::int64_t kNumElements = 1 << 18;  // an update takes long enough to be seen

std::unique_ptr<Store> new_store(bool tied, std::int64_t num_elements = kNumElements, std::uint32_t num_layers = kNumBlocks,
                                 bool with_sums = false, std::uint32_t num_copies = 1) {
  std::vector<LayerRequest> layers(num_layers, LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers) {
    layer.parameters.push_back({.name = "w", .shape = {num_elements}, .tied_group = tied ? 0 : -1});
  }
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  return Store::create(settings, Catalogue::lay_out(layers, num_copies, with_sums));
}

float* weights(Store& store, std::uint32_t block) {
  return reinterpret_cast<float*>(store.parameters(store.catalogue().blocks()[block].parameter_offset[0]));
}

void fill_gradient(Store& store, std::uint32_t use, float value) {
  auto* gradient = reinterpret_cast<float*>(store.gradients(store.catalogue().uses()[use].gradient_offset));
  const UseRecord& record = store.catalogue().uses()[use];
  std::fill_n(gradient, store.catalogue().blocks()[record.block].num_elements, value);
}

// A round was accepted: a task for each use.
void accept_tasks(Updates& updates, const Store& store, std::uint64_t version = 1) {
  for (std::uint32_t use = 0; use < store.catalogue().uses().size(); ++use) updates.task_accepted(version, use);
}

double square_sum(float value) { return static_cast<double>(value) * static_cast<double>(value) * kNumElements; }

void expect_published(Store& store, std::uint32_t block, std::uint64_t version) {
  EXPECT_EQ(store.published(block).wait_at_least(version, kLong), WaitResult::kReached) << "block " << block;
}

TEST(Updates, PublishABlockAsSoonAsItsGradientIsCommittedAndNoOther) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  updates.accept_step(1, {}, {});
  for (std::uint32_t block = kNumBlocks; block-- > 0;) {  // backward: the last layer first
    fill_gradient(*store, block, 1);
    updates.gradient_committed(1, block, 1, square_sum(1));
    expect_published(*store, block, 1);
    EXPECT_EQ(store->taken(block).wait_at_least(1, kLong), WaitResult::kReached);
    for (std::uint32_t other = 0; other < block; ++other) {
      EXPECT_EQ(store->published(other).observe(), 0U);
      EXPECT_EQ(store->taken(other).observe(), 0U);
    }
  }
  updates.wait_applied(1);
}

TEST(Updates, WaitForTheCallOfStep) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) updates.gradient_committed(1, block, 1, 0);
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) EXPECT_EQ(store->published(block).observe(), 0U);
  const auto outcome = updates.accept_step(1, {}, {});
  updates.wait_applied(1);
  EXPECT_EQ(updates.wait_norm(*outcome).grad_norm, 0);
}

// With clipping the updates run in the order in which the next round needs the layers, whichever came first: the call
// of step() or the last gradient.
TEST(Updates, WithClippingAreDoneInLayerOrder) {
  for (const bool is_called_first : {true, false}) {
    const auto store = new_store(false);
    Updates updates(*store, 0, 1, false);
    accept_tasks(updates, *store);
    std::vector<std::thread> watchers;
    for (std::uint32_t block = 1; block < kNumBlocks; ++block) {
      watchers.emplace_back([&store, block] {
        expect_published(*store, block, 1);
        for (std::uint32_t before = 0; before < block; ++before) EXPECT_EQ(store->published(before).observe(), 1U);
      });
    }
    if (is_called_first) updates.accept_step(1, {}, {.max_grad_norm = 1});
    for (std::uint32_t block = kNumBlocks; block-- > 0;) updates.gradient_committed(1, block, 1, 0);
    if (!is_called_first) updates.accept_step(1, {}, {.max_grad_norm = 1});
    for (std::thread& watcher : watchers) watcher.join();
    updates.wait_applied(1);
  }
}

TEST(Updates, WithClippingScaleByTheNormOfAllGradients) {
  const auto store = new_store(false);
  AdamW rule;
  rule.learning_rate = 0.1;
  rule.epsilon = 1;  // makes the step depend on the gradient's size
  rule.weight_decay = 0;
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(1, AdamWStep::of(rule, 1), {.max_grad_norm = 1});
  double total = 0;
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) {
    const float value = static_cast<float>(block + 1);
    fill_gradient(*store, block, value);
    total += square_sum(value);
    for (std::uint32_t other = 0; other < kNumBlocks; ++other) EXPECT_EQ(store->published(other).observe(), 0U);
    updates.gradient_committed(1, block, 1, square_sum(value));
  }
  updates.wait_applied(1);
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(total));
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) {
    const double g = (block + 1) / (std::sqrt(total) + 1e-6);
    EXPECT_NEAR(weights(*store, block)[0], -0.1 * g / (g + 1), 1e-6);
  }
}

// A gradient that is not finite must not spoil weights and moments.
TEST(Updates, WithClippingSkipAStepWhoseNormIsNotFinite) {
  const auto store = new_store(false, kNumElements, kNumBlocks, false, 2);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store, 2);
  const BlockRecord& block = store->catalogue().blocks()[1];
  const auto* copy = reinterpret_cast<const float*>(store->parameters(block.parameter_offset[1]));
  weights(*store, 1)[7] = 3;
  for (std::uint32_t b = 0; b < kNumBlocks; ++b) {
    fill_gradient(*store, b, 1);
    updates.gradient_committed(1, b, 1, b == 2 ? INFINITY : square_sum(1));
  }
  const auto outcome = updates.accept_step(1, AdamWStep::of({}, 1), {.max_grad_norm = 1});
  updates.wait_applied(1);
  EXPECT_TRUE(updates.wait_norm(*outcome).skipped);
  EXPECT_EQ(copy[7], 3) << "the other working copy is the new version";
  EXPECT_EQ(store->state(block.moment1_offset)[7], 0);
  for (std::uint32_t b = 0; b < kNumBlocks; ++b) {
    EXPECT_EQ(store->published(b).observe(), 1U);
    EXPECT_EQ(store->taken(b).observe(), 1U);
    updates.gradient_committed(2, b, 2, square_sum(1));
  }
  const auto next = updates.accept_step(2, AdamWStep::of({}, 2), {.max_grad_norm = 1});
  updates.wait_applied(2);
  EXPECT_FALSE(updates.wait_norm(*next).skipped);
  EXPECT_NE(store->state(block.moment1_offset)[7], 0);
}

// An evaluation may still read the copy that the update overwrites.
TEST(Updates, WaitForTasksWithoutGradientsToo) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  updates.task_accepted(1, 2);
  updates.accept_step(1, {}, {});
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) updates.gradient_committed(1, block, 1, 0);
  for (const std::uint32_t block : {0U, 1U, 3U}) expect_published(*store, block, 1);
  EXPECT_EQ(store->published(2).observe(), 0U);
  updates.task_committed(1, 2);
  updates.wait_applied(1);
}

TEST(Updates, LeaveFrozenBlocksAndOtherPipelinesAlone) {
  std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
  layers[0].parameters.push_back({.name = "w", .shape = {64}});
  layers[1].parameters.push_back({.name = "f", .shape = {64}, .is_trained = false});
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(
      settings, Catalogue::lay_out({{.name = "a", .layers = layers}, {.name = "b", .layers = layers}}));
  Updates updates(*store, 1, 1, false);
  updates.task_accepted(1, 2);
  updates.accept_step(1, {}, {});
  updates.gradient_committed(1, 2, 1, 0);
  updates.wait_applied(1);
  for (const std::uint32_t block : {0U, 1U, 3U}) EXPECT_EQ(store->published(block).observe(), 0U);
  EXPECT_EQ(store->published(2).observe(), 1U);
}

TEST(Updates, OfATiedBlockWaitForAllItsUses) {
  const auto store = new_store(true, kNumElements, 3);
  ASSERT_EQ(store->catalogue().blocks().size(), 1U);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(1, {}, {});
  for (std::uint32_t use = 3; use-- > 0;) {
    EXPECT_EQ(store->published(0).observe(), 0U);
    fill_gradient(*store, use, 2);
    updates.gradient_committed(1, use, 1, 0);  // the workers' sums of a tied block mean nothing
  }
  updates.wait_applied(1);
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(square_sum(6)));
  for (std::uint32_t use = 0; use < 3; ++use) EXPECT_EQ(store->taken(use).observe(), 1U);
}

TEST(Updates, OfSeveralRoundsGiveAGradientBlockBackWhenItIsAdded) {
  const auto store = new_store(false, kNumElements, 1, true);
  Updates updates(*store, 0, 1, true);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  for (std::uint64_t round = 0; round < 3; ++round) {
    fill_gradient(*store, 0, static_cast<float>(round + 1));
    updates.gradient_committed(1, 0, round + 1, 0);
    EXPECT_EQ(store->taken(0).wait_at_least(round + 1, kLong), WaitResult::kReached);
    EXPECT_EQ(store->published(0).observe(), 0U);
  }
  const auto outcome = updates.accept_step(1, {}, {});
  updates.wait_applied(1);
  EXPECT_DOUBLE_EQ(updates.wait_norm(*outcome).grad_norm, std::sqrt(square_sum(6)));
}

// An asynchronous run: the next step's gradients are there before this step is applied.
TEST(Updates, OfSeveralRoundsKeepTheSumOfAStepUntilItIsApplied) {
  const auto store = new_store(false, kNumElements, 1, true);
  Updates updates(*store, 0, 1, true);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store);
  accept_tasks(updates, *store, 2);
  accept_tasks(updates, *store, 2);
  fill_gradient(*store, 0, 1);
  updates.gradient_committed(1, 0, 1, 0);
  ASSERT_EQ(store->taken(0).wait_at_least(1, kLong), WaitResult::kReached);
  updates.gradient_committed(1, 0, 2, 0);
  ASSERT_EQ(store->taken(0).wait_at_least(2, kLong), WaitResult::kReached);
  fill_gradient(*store, 0, 5);
  updates.gradient_committed(2, 0, 3, 0);
  const auto first = updates.accept_step(1, {}, {.max_grad_norm = 1});
  ASSERT_EQ(store->taken(0).wait_at_least(3, kLong), WaitResult::kReached);
  updates.gradient_committed(2, 0, 4, 0);
  const auto second = updates.accept_step(2, {}, {.max_grad_norm = 1});
  updates.wait_applied(2);
  EXPECT_DOUBLE_EQ(updates.wait_norm(*first).grad_norm, std::sqrt(square_sum(2)));
  EXPECT_DOUBLE_EQ(updates.wait_norm(*second).grad_norm, std::sqrt(square_sum(10)));
}

TEST(Updates, OfAModelWithoutParametersAreDoneAtOnce) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(settings, Catalogue::lay_out({{.name = "empty"}}, 1, false));
  Updates updates(*store, 0, 1, false);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto outcome = updates.accept_step(step, {}, {.max_grad_norm = 1});
    updates.wait_applied(step);
    EXPECT_EQ(updates.wait_norm(*outcome).grad_norm, 0);
  }
}

// Of several blocks that may be updated, the next round needs the first one first.
TEST(Updates, WithoutClippingTakeTheFirstLayerOfThoseThatAreReady) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  std::vector<std::thread> watchers;
  for (std::uint32_t block = 1; block < kNumBlocks; ++block) {
    watchers.emplace_back([&store, block] {
      expect_published(*store, block, 1);
      for (std::uint32_t before = 0; before < block; ++before) EXPECT_EQ(store->published(before).observe(), 1U);
    });
  }
  for (std::uint32_t block = kNumBlocks; block-- > 0;) updates.gradient_committed(1, block, 1, 0);
  updates.accept_step(1, {}, {});
  for (std::thread& watcher : watchers) watcher.join();
}

TEST(Updates, GoOnFromALoadedState) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  updates.restart_at(41);
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) EXPECT_EQ(store->published(block).observe(), 41U);
  accept_tasks(updates, *store, 42);
  updates.accept_step(42, {}, {});
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) updates.gradient_committed(42, block, 1, 0);
  updates.wait_applied(42);
}

TEST(Updates, ThatAreStoppedGiveTheFirstErrorToAllWhoWait) {
  const auto store = new_store(false);
  Updates updates(*store, 0, 1, false);
  accept_tasks(updates, *store);
  const auto outcome = updates.accept_step(1, {}, {});
  std::thread waiter([&] {
    expect_error(ExitCode::kHang, {"first"}, [&] { updates.wait_applied(1); });
  });
  updates.stop(std::make_exception_ptr(Error(ExitCode::kHang, "first")));
  updates.stop(std::make_exception_ptr(Error(ExitCode::kHang, "second")));
  waiter.join();
  expect_error(ExitCode::kHang, {"first"}, [&] { (void)updates.wait_norm(*outcome); });
}

}  // namespace
}  // namespace rp
