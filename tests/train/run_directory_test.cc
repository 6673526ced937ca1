#include "train/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> problems_of(const fs::path& path, bool is_resumed = false) {
  Problems problems;
  RunDirectory(path).check(is_resumed, problems);
  return problems.messages();
}

// An output directory after some steps.
void make_run(const fs::path& path) {
  fs::create_directories(path);
  std::ofstream(path / "metrics.jsonl") << "{\"step\": 1}\n";
}

TEST(RunDirectory, ANewOrEmptyDirectoryIsFineAndCheckingChangesNothing) {
  const TempDirectory directory;
  EXPECT_TRUE(problems_of(directory.path()).empty());
  EXPECT_TRUE(problems_of(directory.file("a/b/c")).empty());
  EXPECT_FALSE(fs::exists(directory.file("a")));
}

TEST(RunDirectory, SomebodyElsesDirectoryOrFileIsRefused) {
  const TempDirectory directory;
  const fs::path file = directory.write("letter.txt", "dear");
  EXPECT_THAT(problems_of(directory.path()), ElementsAre(HasSubstr("holds something else")));
  EXPECT_THAT(problems_of(file), ElementsAre(HasSubstr("not a directory")));
  EXPECT_THAT(problems_of(file, true), ElementsAre(HasSubstr("not a directory")));
}

TEST(RunDirectory, ARunIsGoneOnWithOnlyByResume) {
  const TempDirectory directory;
  make_run(directory.path());
  EXPECT_THAT(problems_of(directory.path()), ElementsAre(HasSubstr("holds a run already; name another")));
  EXPECT_TRUE(problems_of(directory.path(), true).empty());
  fs::create_directory(directory.file("checkpoint-1"));
  EXPECT_THAT(problems_of(directory.path()), ElementsAre(HasSubstr("--resume " + directory.path().string())));
  fs::create_directory(directory.file("final"));
  EXPECT_THAT(problems_of(directory.path(), true), ElementsAre(HasSubstr("has ended")));
}

TEST(RunDirectory, ARunThatMadeNoStepIsStartedAgain) {
  const TempDirectory directory;
  (void)directory.write("metrics.jsonl", "");
  EXPECT_TRUE(problems_of(directory.path()).empty());
}

TEST(RunDirectory, CheckpointsAreInTheOrderOfTheirSteps) {
  const TempDirectory directory;
  for (const char* name : {"checkpoint-20", "checkpoint-3", "checkpoint-100", "checkpoint-x", ".checkpoint-7.partial-1", "checkpoint-"}) {
    fs::create_directory(directory.file(name));
  }
  EXPECT_THAT(RunDirectory(directory.path()).checkpoints(), ElementsAre(3, 20, 100));
  EXPECT_EQ(checkpoint_to_resume(directory.path()), directory.file("checkpoint-100"));
  EXPECT_EQ(checkpoint_to_resume(directory.file("checkpoint-3")), directory.file("checkpoint-3"));
}

TEST(RunDirectory, NothingToResumeFromIsBadInput) {
  const TempDirectory directory;
  expect_refusal({"no such directory"}, [&] { (void)checkpoint_to_resume(directory.file("nowhere")); });
  make_run(directory.path());
  expect_refusal({"no checkpoint to resume from"}, [&] { (void)checkpoint_to_resume(directory.path()); });
}

}  // namespace
}  // namespace rp
