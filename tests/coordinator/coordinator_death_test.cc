// Lets the coordinators of runs of the toy model die, at commits and around updates, while workers die as well. Another
// coordinator goes on from what the store keeps (docs/design/restart.md), and the run must end with the bits of the
// sequential loop.
//
// Only as processes: a coordinator's threads cannot be ended at any place, as those of a process can.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "coordinator/updates/memory_group_updater.h"
#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_run.h"
#include "tests/coordinator/toy_workers.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

// What the coordinators of a run report of it.
struct Reports {
  struct Step {
    std::atomic<bool> is_known{false};
    double norm = 0;
    std::array<double, 3> losses{};  // by round
  };

  // Each step may be reported several times, but always with the same values.
  void report(std::size_t step, const std::vector<double>& losses, double norm) {
    Step& kept = steps.at(step);
    if (kept.is_known.load()) {
      EXPECT_EQ(norm, kept.norm) << "step " << step;
      for (std::size_t r = 0; r < losses.size(); ++r) EXPECT_EQ(losses[r], kept.losses.at(r)) << "step " << step;
    }
    kept.norm = norm;
    for (std::size_t r = 0; r < losses.size(); ++r) kept.losses.at(r) = losses[r];
    kept.is_known.store(true);
  }

  std::array<Step, 8> steps{};
  std::atomic<int> num_unfinished{0};  // steps that another coordinator has finished
};

// In memory that outlives the coordinators.
class SharedReports {
 public:
  SharedReports()
      : memory_(mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        reports_(new(memory_) Reports) {}
  ~SharedReports() { munmap(memory_, sizeof(Reports)); }
  SharedReports(const SharedReports&) = delete;
  SharedReports& operator=(const SharedReports&) = delete;
  [[nodiscard]] Reports& get() const { return *reports_; }

 private:
  void* memory_;
  Reports* reports_;
};

// Makes this process the parent of the processes that a child of it leaves.
class Subreaper {
 public:
  Subreaper() { EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 0); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  // Waits until all children, and what they leave, have ended.
  static void wait_for_all() {
    while (waitpid(-1, nullptr, 0) > 0) continue;
  }
};

// Where a coordinator dies. Its other threads are then anywhere. 0: nowhere.
struct CoordinatorEnd {
  int commit = 0;  // counted from 1
  int update = 0;  // counted from 1, twice for each weight group: before the update and after it
};

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  while (true) pause();
}

class MortalUpdater : public GroupUpdater {
 public:
  MortalUpdater(Store& store, bool adds_rounds, int left)
      : inner_(store, store.catalogue().trained_groups(0), 1, adds_rounds, store.journal()->scratch(0)), left_(left) {}
  void add_to_sum(const GradientPart& part, bool begins) override { inner_.add_to_sum(part, begins); }
  void sum_squares(GroupId group, std::span<double> chunks) override { inner_.sum_squares(group, chunks); }
  void write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) override {
    inner_.write_gradient(group, scaling, gradient);
  }
  void update(GroupId group, Version version, std::span<const UpdateSpan> rules) override {
    if (--left_ == 0) die();
    inner_.update(group, version, rules);
    if (--left_ == 0) die();
  }
  [[nodiscard]] std::optional<GroupId> unfinished(Version version) const override { return inner_.unfinished(version); }

 private:
  MemoryGroupUpdater inner_;
  int left_;
};

// Is the coordinator's process: goes on after the last recorded step, and reports each step once the next one is
// accepted.
bool coordinate(Store& store, const ToyConfig& config, RunSettings settings, const CoordinatorEnd& end,
                Reports& reports) {
  settings.on_commit = [left = end.commit](Store&, const CommittedTask&) mutable {
    if (--left == 0) die();
  };
  Workers workers(store, settings, config);
  CoordinatorOptions options = toy_coordinator_options(config, settings, workers, store);
  options.make_updater = [&](const Catalogue&, bool adds_rounds) {
    return std::make_unique<MortalUpdater>(store, adds_rounds, end.update);
  };
  Coordinator coordinator(store, options);
  if (const std::optional<Version> newest = store.journal()->newest(0)) {
    for (const std::uint64_t steps_ago : {1U, 0U}) {
      if (newest->value() < steps_ago) continue;
      const auto record = StepRecord::from_bytes(store.journal()->record(0, *newest - steps_ago));
      if (!record || record->steps == 0) continue;
      std::vector<double> losses;
      for (const std::vector<double>& of_round : record->results.losses) losses.push_back(of_round.at(0));
      reports.report(record->steps - 1, losses, record->outcome.grad_norm);
    }
    if (coordinator.recover(0) > 0) ++reports.num_unfinished;
  } else {
    coordinator.finish_restart(0, "");
  }
  const std::uint64_t num_done = coordinator.pipeline_state(0).num_steps;
  for (std::size_t step = num_done; step < reports.steps.size(); ++step)
    EXPECT_FALSE(reports.steps.at(step).is_known) << "step " << step << " was reported, and is lost";
  const WorkerWatch watch(workers, coordinator);
  std::optional<ToyStep> before;
  const auto report_before = [&](std::size_t step) {
    if (!before) return;
    std::vector<double> losses;
    for (const auto& round : before->rounds) {
      coordinator.wait_forward(*round);
      losses.push_back(round->losses.at(0));
    }
    reports.report(step, losses, coordinator.wait_norm(0, *before->outcome).grad_norm);
  };
  for (auto step = static_cast<int>(num_done); step < config.num_steps; ++step) {
    ToyStep accepted = accept_toy_step(coordinator, config, step);
    report_before(static_cast<std::size_t>(step) - 1);
    before = std::move(accepted);
  }
  report_before(static_cast<std::size_t>(config.num_steps) - 1);
  coordinator.synchronize();
  return !testing::Test::HasFailure();
}

struct Kills {
  int num_kills = 0;
  int num_unfinished = 0;  // steps whose updates another coordinator has finished
};

// Runs a training whose coordinators die as `draw_end` says.
Kills expect_reference_with_kills(const ToyConfig& config, const RunSettings& settings,
                                  const std::function<CoordinatorEnd()>& draw_end) {
  const Subreaper subreaper;
  const SharedReports shared;
  Reports& reports = shared.get();
  const Catalogue catalogue = toy_catalogue(config);
  StoreSettings store_settings = toy_store_settings(settings);
  store_settings.journal_scratch_bytes = {MemoryGroupUpdater::journal_bytes(catalogue, catalogue.trained_groups(0))};
  auto store = Store::create(store_settings, catalogue);
  write_initial_weights(*store);
  int num_kills = 0;
  while (true) {
    const CoordinatorEnd end = draw_end();
    const int status = status_of_process([&] { return coordinate(*store, config, settings, end, reports); });
    Subreaper::wait_for_all();
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    ++num_kills;
    store = Store::create(store_settings, catalogue, StoreRemains::of(duplicates(store->descriptors())));
  }
  const ToyResult expected = toy_reference(config);
  const auto rounds = static_cast<std::size_t>(config.rounds_per_step);
  for (std::size_t step = 0; step < static_cast<std::size_t>(config.num_steps); ++step) {
    EXPECT_TRUE(reports.steps.at(step).is_known) << "step " << step;
    EXPECT_EQ(reports.steps.at(step).norm, expected.norms.at(step)) << "step " << step;
    for (std::size_t r = 0; r < rounds; ++r)
      EXPECT_EQ(reports.steps.at(step).losses.at(r), expected.losses.at(step * rounds + r)) << "step " << step;
  }
  EXPECT_EQ(toy_masters(*store, config, store->journal()->newest(0).value_or(Version(0))), expected.masters);
  return {.num_kills = num_kills, .num_unfinished = reports.num_unfinished};
}

class CoordinatorDeath : public testing::TestWithParam<Harness> {};

TEST_P(CoordinatorDeath, ChangesNoBitInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 20 : std::atoi(runs));
  Kills total;
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    config.num_steps += 2;
    config.scales_loss = draw(random, 0, 3) == 0;
    RunSettings settings{.harness = GetParam(), .num_workers = draw(random, 1, 4)};
    settings.prefetch = draw(random, 0, 1) == 1;
    settings.check_consistency = draw(random, 0, 3) == 0;
    const Plan plan = random_plan(random, config.num_layers);
    settings.plan = plan_text(plan, config.num_layers);
    if (draw(random, 0, 1) == 1) {  // in the life of each coordinator
      settings.deaths = {{.worker = draw(random, 0, settings.num_workers - 1),
                          .operation = draw(random, 1, 60),
                          .writes_half = draw(random, 0, 1) == 1}};
      settings.max_replacements = 1;
    }
    const int slots_per_step =
        static_cast<int>(plan.forward.size() + 1 + plan.backward.size()) * config.rounds_per_step;
    int kills_left = 12;
    const auto draw_end = [&]() -> CoordinatorEnd {
      if (kills_left-- == 0) return {};
      if (draw(random, 0, 1) == 1) return {.commit = draw(random, 1, 2 * slots_per_step)};
      return {.update = draw(random, 1, 4 * config.num_layers)};
    };
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << config.num_steps << " steps of "
                                    << config.rounds_per_step << " rounds, " << settings.num_workers
                                    << " workers, asynchronous " << config.asynchronous << ", plan '" << settings.plan
                                    << "'");
    const Kills kills = expect_reference_with_kills(config, settings, draw_end);
    total.num_kills += kills.num_kills;
    total.num_unfinished += kills.num_unfinished;
    if (HasFailure()) return;
  }
  EXPECT_GT(total.num_kills, static_cast<int>(2 * num_runs));
  EXPECT_GT(total.num_unfinished, static_cast<int>(num_runs / 2));
}

INSTANTIATE_TEST_SUITE_P(Processes, CoordinatorDeath, testing::Values(Harness::kProcesses));

}  // namespace
}  // namespace rp::test
