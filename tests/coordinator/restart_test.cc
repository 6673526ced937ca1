// Steps whose coordinator is killed are finished by another one, from what the store keeps.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "coordinator/updates/memory_group_updater.h"
#include "coordinator/updates/updates.h"
#include "tests/common/expect_refusal.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

constexpr std::uint32_t kRestartGroups = 3;
constexpr std::int64_t kRestartElements = 300'000;

StepRecord example_record() {
  return {.steps = 7,
          .rounds = 14,
          .history = {.num_applied = 6, .loss_scale = {.scale = 8, .previous_scale = 4, .steps_since_overflow = 3}},
          .outcome = {.is_final = true, .grad_norm = 0.1, .skipped = false, .loss_scale = 4, .nonfinite_layers = {2}},
          .results = {.losses = {{1.5, 0.25}, {2.5}}, .buffers = {{3, std::vector<std::byte>(5, std::byte(9))}}},
          .restart_data = std::string("a\0b", 3),
          .rules = {{UpdateSpan{.begin = 0, .end = 5, .step = update_step_of(AdamW{}, 3)}}, {}}};
}

TEST(StepRecord, SurvivesItsBytes) {
  const StepRecord record = example_record();
  const std::optional<StepRecord> read = StepRecord::from_bytes(record.to_bytes());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->steps, 7U);
  EXPECT_EQ(read->rounds, 14U);
  EXPECT_EQ(read->history.num_applied, 6U);
  EXPECT_EQ(read->history.loss_scale.previous_scale, 4);
  EXPECT_EQ(read->history.loss_scale.steps_since_overflow, 3);
  EXPECT_EQ(read->outcome.grad_norm, 0.1);
  EXPECT_EQ(read->outcome.nonfinite_layers, std::vector<int>({2}));
  EXPECT_EQ(read->results.losses, record.results.losses);
  EXPECT_EQ(read->results.buffers, record.results.buffers);
  EXPECT_EQ(read->restart_data, record.restart_data);
  ASSERT_EQ(read->rules.size(), 2U);
  ASSERT_EQ(read->rules[0].size(), 1U);
  EXPECT_EQ(read->rules[0][0].end, 5U);
  EXPECT_EQ(read->rules[0][0].step.v_correction, record.rules[0][0].step.v_correction);
  EXPECT_TRUE(read->rules[1].empty());
}

TEST(StepRecord, IsNotMadeOfOtherBytes) {
  std::vector<std::byte> bytes = example_record().to_bytes();
  bytes.resize(bytes.size() / 2);
  EXPECT_FALSE(StepRecord::from_bytes(bytes));
  EXPECT_FALSE(StepRecord::from_bytes({}));
}

// The updates of one pipeline, with one task per group and step, in a process that may be killed.
class RestartedUpdates : public testing::Test {
 protected:
  RestartedUpdates() {
    std::vector<LayerRequest> layers(kRestartGroups, LayerRequest{.name = "l"});
    for (LayerRequest& layer : layers)
      layer.parameters.push_back({.name = "w", .dtype = DType::kBFloat16, .shape = {kRestartElements}});
    catalogue_ = Catalogue::lay_out(layers, 2, false);
    settings_.backing = "memfd";
    settings_.arena_limit_bytes = 1 << 20;
    settings_.journal_scratch_bytes = {MemoryGroupUpdater::journal_bytes(catalogue_, catalogue_.trained_groups(0))};
  }

  [[nodiscard]] UpdatesOptions options(Store& store) const { return {.num_threads = 2, .journal = store.journal()}; }

  // Makes the gradients of the step that makes `version`, and the step.
  static void make_step(Store& store, Updates& updates, Version version) {
    for (std::uint32_t use = 0; use < kRestartGroups; ++use) updates.task_accepted(version, UseId(use), true);
    updates.accept_step(version, version - 1,
                        {.rules = {AdamW{.learning_rate = 0.01, .weight_decay = 0.1}},
                         .options = {.restart_data = "after " + std::to_string(version.value())},
                         .num_rounds = 1,
                         .num_forwards = 1,
                         .steps = version.value(),
                         .rounds = version.value()});
    for (std::uint32_t use = 0; use < kRestartGroups; ++use) {
      auto* gradient =
          reinterpret_cast<std::uint16_t*>(store.gradients(store.catalogue().uses()[UseId(use)].gradient_offset));
      for (std::int64_t i = 0; i < kRestartElements; ++i)
        gradient[i] = static_cast<std::uint16_t>(0x3c00 + (17 * i + use + version.value()) % 256);
    }
    updates.forward_ended(version, {});
    updates.round_ended(version, {0.5});
    for (std::uint32_t use = 0; use < kRestartGroups; ++use)
      updates.gradient_committed(version, {.use = UseId(use), .released_after = version.value()}, 1);
    updates.wait_applied(version);
  }

  // Makes the steps behind the last one that the journal has, if there is one, up to `last`.
  void make_steps(Store& store, std::uint64_t last) {
    Updates updates(store, 0, options(store));
    Version version{};
    if (const std::optional<Version> newest = store.journal()->newest(0)) {
      version = *newest;
      const std::optional<StepRecord> record = StepRecord::from_bytes(store.journal()->record(0, version));
      ASSERT_TRUE(record);
      EXPECT_EQ(record->steps, version.value());
      num_left_ += updates.recover(version, *record);
    } else {
      updates.record_weights(version, {});
    }
    while (version.value() < last) make_step(store, updates, version = version + 1);
  }

  [[nodiscard]] static bool have_same_weights(Store& a, Store& b) {
    const auto same = [&](auto&& start, std::uint64_t bytes) { return std::memcmp(start(a), start(b), bytes) == 0; };
    return same([](Store& s) { return s.parameters(0); }, a.catalogue().parameter_bytes()) &&
           same([](Store& s) { return s.state(0); }, a.catalogue().state_bytes());
  }

  Catalogue catalogue_;
  StoreSettings settings_;
  int num_left_ = 0;
};

TEST_F(RestartedUpdates, ContinueAfterTheLastStepThatHasBegun) {
  constexpr std::uint64_t kSteps = 6;
  const std::unique_ptr<Store> expected = Store::create(settings_, catalogue_);
  make_steps(*expected, kSteps);
  std::mt19937 random(11);
  int num_killed = 0;
  for (int round = 0; round < 5 || num_killed < 12; ++round) {
    std::unique_ptr<Store> store = Store::create(settings_, catalogue_);
    for (useconds_t most = 30'000;; most += 5000) {  // longer each time, so that slow processes end, too
      const pid_t process = test::start_process([&] {
        make_steps(*store, kSteps);
        return !HasFailure();
      });
      usleep(std::uniform_int_distribution<useconds_t>(1000, most)(random));
      kill(process, SIGKILL);
      const int status = test::wait_for_process(process);
      store = Store::create(settings_, catalogue_, StoreRemains::of(test::duplicates(store->descriptors())));
      if (status == 0) break;
      ASSERT_TRUE(WIFSIGNALED(status));
      ++num_killed;
    }
    make_steps(*store, kSteps);  // finishes what is left, if anything
    EXPECT_TRUE(have_same_weights(*store, *expected)) << "round " << round;
    const auto record = StepRecord::from_bytes(store->journal()->record(0, Version(kSteps)));
    ASSERT_TRUE(record);
    EXPECT_EQ(record->restart_data, "after 6");
    EXPECT_EQ(record->results.losses, std::vector<std::vector<double>>({{0.5}}));
  }
}

TEST_F(RestartedUpdates, DoNotBeginBeforeTheResultsOfTheStepAreKnown) {
  const std::unique_ptr<Store> store = Store::create(settings_, catalogue_);
  Updates updates(*store, 0, options(*store));
  for (std::uint32_t use = 0; use < kRestartGroups; ++use) updates.task_accepted(Version(1), UseId(use), true);
  updates.accept_step(Version(1), Version(0),
                      {.rules = {AdamW{}}, .options = {}, .num_rounds = 1, .num_forwards = 1, .steps = 1, .rounds = 1});
  for (std::uint32_t use = 0; use < kRestartGroups; ++use)
    updates.gradient_committed(Version(1), {.use = UseId(use), .released_after = 1}, 0);
  usleep(20'000);
  EXPECT_EQ(store->published(GroupId(0)).observe(), Version(0));
  EXPECT_EQ(store->journal()->newest(0), std::nullopt);
  updates.forward_ended(Version(1), {});
  updates.round_ended(Version(1), {1});
  updates.wait_applied(Version(1));
  EXPECT_EQ(store->journal()->newest(0), Version(1));
}

TEST_F(RestartedUpdates, ShowTheNormOnceTheStepIsRecorded) {
  const std::unique_ptr<Store> store = Store::create(settings_, catalogue_);
  Updates updates(*store, 0, options(*store));
  for (std::uint32_t use = 0; use < kRestartGroups; ++use) updates.task_accepted(Version(1), UseId(use), true);
  const auto outcome = updates.accept_step(Version(1), Version(0),
                                           {.rules = {AdamW{}},
                                            .options = {.restart_data = std::string(32 << 20, 'x')},  // takes a while
                                            .num_rounds = 1,
                                            .num_forwards = 1,
                                            .steps = 1,
                                            .rounds = 1});
  updates.forward_ended(Version(1), {});
  updates.round_ended(Version(1), {1});
  for (std::uint32_t use = 0; use < kRestartGroups; ++use)
    updates.gradient_committed(Version(1), {.use = UseId(use), .released_after = 1}, 4);
  EXPECT_GT(updates.wait_norm(*outcome).grad_norm, 0);
  EXPECT_EQ(store->journal()->newest(0), Version(1));
}

TEST_F(RestartedUpdates, AreNotPossibleOnceAFunctionHasMadeAStepOrWeightsAreLoaded) {
  const std::unique_ptr<Store> store = Store::create(settings_, catalogue_);
  Updates updates(*store, 0, options(*store));
  updates.record_weights(Version(0), {});
  EXPECT_EQ(store->journal()->newest(0), Version(0));
  for (std::uint32_t use = 0; use < kRestartGroups; ++use) updates.task_accepted(Version(1), UseId(use), true);
  updates.accept_step(
      Version(1), Version(0),
      {.rules = {}, .function = [](Version, bool, const GradientWriter&) {}, .num_rounds = 1, .num_forwards = 1});
  updates.forward_ended(Version(1), {});
  updates.round_ended(Version(1), {1});
  for (std::uint32_t use = 0; use < kRestartGroups; ++use)
    updates.gradient_committed(Version(1), {.use = UseId(use), .released_after = 1}, 0);
  updates.wait_applied(Version(1));
  EXPECT_EQ(store->journal()->newest(0), std::nullopt);
  make_step(*store, updates, Version(2));
  EXPECT_EQ(store->journal()->newest(0), std::nullopt) << "the function may have a state of its own";
  updates.restart_at(Version(3), {});
  EXPECT_EQ(store->journal()->newest(0), std::nullopt) << "weights are being loaded";
  updates.record_weights(Version(3), {});
  EXPECT_EQ(store->journal()->newest(0), Version(3));
}

}  // namespace
}  // namespace rp
