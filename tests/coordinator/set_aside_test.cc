// Sets tasks of the toy model aside, as those that end their workers, writes them to files, and computes them again
// (docs/design/replay.md).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/rounds/completions.h"
#include "hoststore/task_file/task_file.h"
#include "roundpipe/error.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/coordinator/toy_run.h"

namespace rp::test {
namespace {

constexpr const char* kSetAsidePlan = "forward 0-1 2-3 | fused 4 | backward 3 1-2 0";
constexpr int kSlotsPerRound = 6;
constexpr int kNumRounds = 4;

ToyConfig config_with(bool asynchronous) {
  ToyConfig config;
  config.num_steps = kNumRounds;
  config.tied = true;
  config.asynchronous = asynchronous;
  return config;
}

std::vector<std::byte> copy_of(const void* data, std::uint64_t bytes) {
  std::vector<std::byte> copy(bytes);
  std::memcpy(copy.data(), data, bytes);
  return copy;
}

// Returns copies of everything that a completed task has written, except times.
std::map<std::string, std::vector<std::byte>> outputs_of(Store& store, const Command& task) {
  std::map<std::string, std::vector<std::byte>> outputs;
  const RoundTable table = store.round_table(task);
  for (const BlockRow& row : output_rows(task, store.catalogue())) {
    for (int m = 0; m < (is_once_a_task(row.kind) ? 1 : task.num_microbatches); ++m) {
      const BlockPlace& place = table.place(row.kind, row.index, m);
      outputs[testing::PrintToString(std::vector{static_cast<int>(row.kind), row.index, m})] =
          copy_of(store.block_data(place), place.bytes);
    }
  }
  for (int m = 0; task.runs_loss() && m < task.num_microbatches; ++m)
    outputs["loss " + std::to_string(m)] = copy_of(&table.loss(m), sizeof(LossRecord));
  for (int layer = task.first_layer; task.phase != Phase::kForward && layer < task.end_layer; ++layer) {
    for (const UseId use : store.catalogue().uses_of(task.catalogue_layer(layer))) {
      const std::span<const std::byte> gradient = store.gradient(use);
      outputs["gradient " + std::to_string(use.value())] = {gradient.begin(), gradient.end()};
      outputs["sum " + std::to_string(use.value())] = copy_of(&table.square_sum(use), sizeof(double));
    }
  }
  return outputs;
}

// Runs until the task of this slot, and has it written to `file`.
void write_task(const std::filesystem::path& file, const ToyConfig& config, SlotNumber slot) {
  RunSettings settings{.num_workers = 2, .plan = kSetAsidePlan};
  settings.set_aside = slot;
  settings.on_set_aside = [&file](Store& store, const Command& task) {
    write_task_file(file, store, task, {.program = "/bin/toy", .task = task_text(task)});
    throw Error(ExitCode::kTaskSetAside, "written");
  };
  EXPECT_THROW((void)run_toy(config, settings), Error);
}

class SetAside : public testing::TestWithParam<Harness> {};

// The first task of a round: all steps before it are finished.
TEST_P(SetAside, EverythingBeforeTheTaskIsFinal) {
  const ToyConfig config = config_with(false);
  for (const int num_rounds : {0, 1, 3}) {
    for (const int operation : {0, 15, 40}) {  // before which a worker dies; 0: none dies
      RunSettings settings{.harness = GetParam(), .num_workers = 3, .plan = kSetAsidePlan, .max_replacements = 1};
      if (operation > 0) settings.deaths = {{.worker = 1, .operation = operation}};
      settings.set_aside = SlotNumber(static_cast<std::uint64_t>(kSlotsPerRound * num_rounds));
      bool is_called = false;
      settings.on_set_aside = [&](Store& store, const Command& task) {
        is_called = true;
        EXPECT_EQ(task.round, static_cast<std::uint64_t>(num_rounds));
        EXPECT_EQ(task.first_layer, 0);
        ToyConfig until = config;
        until.num_steps = num_rounds;
        std::vector<float> masters;
        for (const GroupId group : store.catalogue().weight_groups().indices()) {
          const Version version(static_cast<std::uint64_t>(num_rounds));
          while (store.published(group).observe() < version) std::this_thread::yield();
          const WeightGroupRecord& record = store.catalogue().weight_groups()[group];
          const auto* master = record.dtype == DType::kFloat32
                                   ? reinterpret_cast<const float*>(store.working_copy(group, version).data())
                                   : store.state(record.master_offset);
          masters.insert(masters.end(), master, master + config.num_elements);
        }
        EXPECT_EQ(masters, toy_reference(until).masters);
        throw Error(ExitCode::kTaskSetAside, "set aside");
      };
      SCOPED_TRACE(testing::Message() << num_rounds << " rounds, operation " << operation);
      try {
        expect_reference(config, settings);  // the task may have been committed before the worker died
        EXPECT_GT(operation, 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kTaskSetAside);
        EXPECT_TRUE(is_called);
      }
    }
  }
}

TEST_P(SetAside, NoLaterTaskIsComputed) {
  RunSettings settings{.harness = GetParam(), .num_workers = 2, .plan = kSetAsidePlan};
  settings.set_aside = SlotNumber(7);
  std::uint64_t num_committed = 0;
  settings.on_commit = [&num_committed](Store&, const CommittedTask&) { ++num_committed; };
  settings.on_set_aside = [](Store&, const Command&) { throw Error(ExitCode::kTaskSetAside, "set aside"); };
  EXPECT_THROW((void)run_toy(config_with(true), settings), Error);
  EXPECT_EQ(num_committed, 7U);
}

INSTANTIATE_TEST_SUITE_P(Threads, SetAside, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, SetAside, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, SetAside, testing::Values(Harness::kProcesses));

// For each task of the last two rounds: forward, fused and backward.
TEST(TaskFile, IsComputedWithTheBitsOfTheRun) {
  const TempDirectory directory;
  for (const bool asynchronous : {false, true}) {
    const ToyConfig config = config_with(asynchronous);
    std::map<std::uint64_t, std::map<std::string, std::vector<std::byte>>> expected;
    RunSettings undisturbed{.num_workers = 2, .plan = kSetAsidePlan};
    undisturbed.on_commit = [&expected](Store& store, const CommittedTask& task) {
      expected[task.slot.number.value()] = outputs_of(store, command_of(task.round, task.slot));
    };
    expect_reference(config, undisturbed);
    for (std::uint64_t slot = kSlotsPerRound * (kNumRounds - 2); slot < kSlotsPerRound * kNumRounds; ++slot) {
      SCOPED_TRACE(testing::Message() << "slot " << slot << ", asynchronous " << asynchronous);
      const std::filesystem::path file = directory.path() / ("task-" + std::to_string(slot));
      write_task(file, config, SlotNumber(slot));
      const auto store =
          Store::create({.backing = "memfd", .arena_limit_bytes = std::uint64_t{256} << 20, .is_sparse = true},
                        toy_catalogue(config));
      const Command task = load_task(file, *store);
      std::thread worker([&] { serve_on_cpu(*store, 0, config, {}); });
      EXPECT_TRUE(store->command_writer(0).try_push(task));
      WaitRecord record;
      const auto completion = Completions(*store, {}).wait(0, task.slot.number(), record, [] { return kNsPerMs; });
      ASSERT_TRUE(completion.has_value());
      EXPECT_EQ(completion->outcome, TaskOutcome::kDone);
      const auto actual = outputs_of(*store, task);
      EXPECT_FALSE(actual.empty());
      EXPECT_EQ(actual, expected.at(slot));
      store->epoch().publish_wanted(kEndEpoch);
      worker.join();
      std::filesystem::remove(file);
    }
  }
}

TEST(TaskFile, SaysWhichProgramComputedIt) {
  const TempDirectory directory;
  const std::filesystem::path file = directory.path() / "task";
  RunSettings settings{.num_workers = 1, .plan = kSetAsidePlan};
  settings.set_aside = SlotNumber(2);
  const TaskFileInfo written{.program = "/bin/to\xc3\xa9y",
                             .arguments = {"--a", "", "b c\n"},
                             .directory = "/tmp",
                             .variables = {{"RP_DEVICE", "cpu"}},
                             .fingerprint = 0xffff'ffff'ffff'fff0,
                             .task = "some task"};
  settings.on_set_aside = [&](Store& store, const Command& task) {
    EXPECT_EQ(task_text(task), "the fused stage of layer 4, round 0, step 1");
    write_task_file(file, store, task, written);
    write_task_file(file, store, task, written);  // takes the place of the first
    throw Error(ExitCode::kTaskSetAside, "written");
  };
  EXPECT_THROW((void)run_toy(config_with(false), settings), Error);
  const TaskFileInfo read = read_task_info(file);
  EXPECT_EQ(read.program, written.program);
  EXPECT_EQ(read.arguments, written.arguments);
  EXPECT_EQ(read.directory, written.directory);
  EXPECT_EQ(read.variables, written.variables);
  EXPECT_EQ(read.fingerprint, written.fingerprint);
  EXPECT_EQ(read.task, written.task);
}

// Damages each byte of the header in turn, and some of the command, and expects an error or a task of this model.
TEST(TaskFile, ThatIsDamagedIsRefusedOrHarmless) {
  const TempDirectory directory;
  const std::filesystem::path file = directory.path() / "task";
  const ToyConfig config = config_with(false);
  write_task(file, config, SlotNumber(3));
  std::ifstream whole(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const std::size_t first_data = sizeof header_bytes + header_bytes;
  ASSERT_GT(bytes.size(), first_data + sizeof(Command) + 16);
  int num_refused = 0;
  for (std::size_t i = 0; i < first_data + sizeof(Command) + 16; i += i < first_data ? 1 : 3) {
    for (const char damage : {'\x01', '\x40'}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ damage);
      std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
      const auto store = Store::create(
          {.backing = "memfd", .arena_limit_bytes = std::uint64_t{16} << 20, .is_sparse = true}, toy_catalogue(config));
      try {
        (void)read_task_info(file);
        (void)load_task(file, *store);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ExitCode::kBadInput || error.code() == ExitCode::kNoResource) << error.what();
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 1000);
}

TEST(TaskFile, OfAnotherModelIsRefused) {
  const TempDirectory directory;
  const std::filesystem::path file = directory.path() / "task";
  write_task(file, config_with(false), SlotNumber(3));
  ToyConfig other = config_with(false);
  other.num_elements += 1;
  const auto store = Store::create(
      {.backing = "memfd", .arena_limit_bytes = std::uint64_t{256} << 20, .is_sparse = true}, toy_catalogue(other));
  expect_refusal({"not the model"}, [&] { (void)load_task(file, *store); });
}

TEST(TaskFile, IsNotLeftWithoutItsEnd) {
  RunSettings settings{.num_workers = 1, .plan = kSetAsidePlan};
  settings.set_aside = SlotNumber(2);
  settings.on_set_aside = [](Store& store, const Command& task) { write_task_file("/proc/task", store, task, {}); };
  expect_error(ExitCode::kOutputFailed, {"/proc/task"}, [&] { (void)run_toy(config_with(false), settings); });
}

}  // namespace
}  // namespace rp::test
