#include "train/run/run_directory.h"

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

// Creates the output directory of a run that has made steps.
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
  for (const char* name : {"checkpoint-20", "checkpoint-3", "checkpoint-100", "checkpoint-x", ".checkpoint-7.partial-1",
                           "checkpoint-", "checkpoint-020", "checkpoint--5", "damaged-checkpoint-9"}) {
    fs::create_directory(directory.file(name));
  }
  EXPECT_THAT(RunDirectory(directory.path()).checkpoints(), ElementsAre(3, 20, 100));
  EXPECT_EQ(checkpoint_to_resume(directory.path()), directory.file("checkpoint-100"));
  EXPECT_EQ(checkpoint_to_resume(directory.file("checkpoint-3")), directory.file("checkpoint-3"));
}

TEST(RunDirectory, OldCheckpointsAreDeletedAndTheNewestKept) {
  const TempDirectory directory;
  const RunDirectory run(directory.path());
  for (const int step : {1, 2, 5, 9}) fs::create_directory(run.checkpoint(step));
  EXPECT_THAT(run.delete_old_checkpoints(-1, 5, 2), ElementsAre(1));
  EXPECT_THAT(run.checkpoints(), ElementsAre(2, 5, 9)) << "9 is of another run";
  EXPECT_THAT(run.delete_old_checkpoints(2, 9, 1), ElementsAre(5)) << "2 is not to be deleted";
  EXPECT_THAT(run.checkpoints(), ElementsAre(2, 9));
  EXPECT_THAT(run.delete_old_checkpoints(-1, 9, 3), ElementsAre());
  for (const int step : {11, 12, 13}) fs::create_directory(run.checkpoint(step));
  EXPECT_THAT(run.delete_old_checkpoints(-1, 13, 1, {-1, 2, 11}), ElementsAre(9, 12)) << "the best ones stay";
}

TEST(RunDirectory, WhatIsInTheWayIsRenamed) {
  const TempDirectory directory;
  const RunDirectory run(directory.path());
  for (const char* name : {"damaged-checkpoint-5", "damaged-checkpoint-5-2", "damaged-checkpoint-5-3"}) {
    fs::create_directory(run.checkpoint(5));
    EXPECT_EQ(run.set_aside(run.checkpoint(5), "damaged-"), name);
    EXPECT_TRUE(fs::is_directory(directory.file(name)));
  }
  EXPECT_THAT(run.checkpoints(), ElementsAre());
  expect_error(ExitCode::kOutputFailed, {"checkpoint-5", "No such file"},
               [&] { (void)run.set_aside(run.checkpoint(5), "damaged-"); });
}

TEST(RunDirectory, AModelIsExportedToAnyDirectoryWithoutOne) {
  const TempDirectory directory;
  (void)directory.write("letter.txt", "dear");
  Problems problems;
  RunDirectory(directory.path()).check_export(problems);
  EXPECT_TRUE(problems.empty());
  fs::create_directory(directory.file("final"));
  RunDirectory(directory.path()).check_export(problems);
  EXPECT_THAT(problems.messages(), ElementsAre(HasSubstr("final is there already")));
}

TEST(RunDirectory, NothingToResumeFromIsBadInput) {
  const TempDirectory directory;
  expect_refusal({"no such directory"}, [&] { (void)checkpoint_to_resume(directory.file("nowhere")); });
  make_run(directory.path());
  expect_refusal({"no checkpoint to resume from"}, [&] { (void)checkpoint_to_resume(directory.path()); });
}

}  // namespace
}  // namespace rp
