// Kills processes inside a save in the background. A state that has its final name must be complete
// and have the bytes of a run that was not killed. This is a program of its own because it forks,
// and LibTorch must not have started anything before that.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "common/files/output_file.h"
#include "tests/pipeline/saved_states.h"

namespace rp::test {
namespace {

namespace fs = std::filesystem;

constexpr int kNumSteps = 12;

// If `is_large`, files are written as those of models of realistic size are.
pid_t start_training(const fs::path& directory, bool in_background, bool is_large) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (is_large) set_direct_writes_from(1);
  const TinySettings settings{.dtype = at::kBFloat16, .options = {.num_microbatches = 3, .asynchronous = true}};
  {
    TinyRun run(settings);
    train_and_save(run.pipeline(), settings.options, tiny_rounds(kNumSteps), directory, in_background);
  }
  _exit(0);
}

int wait_for(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(KilledSaves, LeaveOnlyWholeStates) {
  const char* asked = std::getenv("RP_KILLS");
  const int num_kills = asked == nullptr ? 30 : std::atoi(asked);
  const TempDirectory reference;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(wait_for(start_training(reference.path(), false, false)), 0);
  const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  std::vector<StateContents> expected;
  for (int step = 0; step <= kNumSteps; ++step) expected.push_back(contents_of(state_path(reference.path(), step)));

  std::mt19937_64 random(1);
  int num_inside = 0, num_states = 0, num_runs = 0;
  for (; num_inside < num_kills && num_runs < 10 * num_kills; ++num_runs) {
    const TempDirectory output;
    const pid_t pid = start_training(output.path(), true, num_runs % 2 == 0);
    std::this_thread::sleep_for(duration * (random() % 1000) / 1000);
    kill(pid, SIGKILL);
    (void)wait_for(pid);
    bool is_inside = false;
    for (const auto& entry : fs::directory_iterator(output.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".state-")) {
        is_inside = true;
        continue;
      }
      ASSERT_TRUE(name.starts_with("state-")) << name;
      ASSERT_EQ(contents_of(entry.path()), expected[std::stoi(name.substr(6))]) << name;
      ++num_states;
    }
    num_inside += is_inside ? 1 : 0;
  }
  EXPECT_EQ(num_inside, num_kills) << "of " << num_runs << " runs";
  EXPECT_GT(num_states, 0);
  std::printf("%d runs killed, %d of them inside a save; %d states, all whole\n", num_runs, num_inside, num_states);
}

// A thread removes what was written, even while the state waits for its final name; then the
// process ends.
TEST(KilledSaves, AreRemovedByASecondInterrupt) {
  const TempDirectory output;
  const pid_t pid = fork();
  if (pid == 0) {
    TinyRun run({.options = {.num_microbatches = 3}});
    const StateSave save = run.pipeline().begin_save_state(output.path() / "state", "");
    while (!save.is_written()) std::this_thread::yield();
    if (fs::is_empty(output.path())) _exit(1);
    raise(SIGINT);
    raise(SIGINT);
    std::this_thread::sleep_for(std::chrono::seconds(30));
    _exit(2);
  }
  const int status = wait_for(pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  EXPECT_TRUE(fs::is_empty(output.path()));
}

}  // namespace
}  // namespace rp::test
