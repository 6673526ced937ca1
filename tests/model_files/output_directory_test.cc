#include "common/checked_files/output_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

void put(const OutputDirectory& directory, const std::string& text) {
  std::ofstream(directory.path() / "file") << text;
}

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t num_entries(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST(OutputDirectory, AppearsWithAllItsFilesWhenItIsCommitted) {
  const TempDirectory parent;
  const auto source = parent.write("source", "copied");
  const fs::path target = parent.file("a/b/final");
  auto directory = OutputDirectory::create(target / "");
  put(directory, "new");
  directory.copy_in(InputFile::open(source), "copy");
  EXPECT_FALSE(fs::exists(target));
  directory.commit();
  EXPECT_EQ(content(target / "file"), "new");
  EXPECT_EQ(content(target / "copy"), "copied");
  EXPECT_EQ(num_entries(target.parent_path()), 1U);
}

TEST(OutputDirectory, RemovesWhatAKilledProcessLeftOfItsSeriesAndNothingElse) {
  const TempDirectory parent;
  for (const char* name :
       {".checkpoint-20.partial-12345678", ".checkpoint-3.partial-00000000", ".checkpoint-.partial-1",
        ".checkpoint-x.partial-12345678", ".final.partial-12345678", "checkpoint-3"}) {
    fs::create_directory(parent.file(name));
  }
  OutputDirectory::create(parent.file("checkpoint-21")).commit();
  EXPECT_EQ(num_entries(parent.path()), 4U) << "two of another name, one committed before, one now";
  OutputDirectory::create(parent.file("final")).commit();
  EXPECT_FALSE(fs::exists(parent.file(".final.partial-12345678")));
  EXPECT_TRUE(fs::exists(parent.file(".checkpoint-x.partial-12345678")));
}

// In a separate process, because the request cannot be withdrawn.
TEST(OutputDirectory, AnInterruptOfUnfinishedOutputMakesItsWritersGiveUpAndLeaveNothing) {
  const TempDirectory parent;
  const auto interrupted = [&parent] {
    if (interrupt_unfinished_output(2)) _exit(1);  // nothing is unfinished
    try {
      const auto directory = OutputDirectory::create(parent.file("final"));
      OutputFile file = OutputFile::create(directory.path() / "file");
      file.write("a", 1);
      if (!interrupt_unfinished_output(2)) _exit(2);
      file.write("b", 1);
    } catch (const Interrupted&) {
      _exit(num_entries(parent.path()) == 0 && !interrupt_unfinished_output(2) ? 0 : 3);
    }
    _exit(4);
  };
  EXPECT_EXIT(interrupted(), testing::ExitedWithCode(0), "");
}

// Simulates a program's second INT as pipeline/process/process_end.cc handles it: it exits at once if
// nothing is unfinished, else by unwinding.
[[noreturn]] void write_until_interrupted(const fs::path& target) {
  signal(SIGINT, [](int) {
    if (!interrupt_unfinished_output(SIGINT)) _exit(0);
  });
  try {
    for (;;) {
      fs::remove_all(target);
      auto directory = OutputDirectory::create(target);
      OutputFile file = OutputFile::create(directory.path() / "file");
      file.write("a", 1);
      directory.commit();
    }
  } catch (const Interrupted&) {
    _exit(0);
  }
}

TEST(OutputDirectory, ASignalAtAnyMomentLeavesNothingHalfWritten) {
  const TempDirectory parent;
  for (int repetition = 0; repetition < 300; ++repetition) {
    const pid_t child = fork();
    if (child == 0) write_until_interrupted(parent.file("final"));
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + 7 * repetition));
    kill(child, SIGINT);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT)) << status;
    ASSERT_LE(num_entries(parent.path()), 1U) << "in repetition " << repetition;
  }
}

TEST(OutputDirectory, LeavesNothingIfItIsNotCommitted) {
  const TempDirectory parent;
  {
    auto first = OutputDirectory::create(parent.file("final"));
    put(first, "half");
    const OutputDirectory second = std::move(first);
    EXPECT_EQ(num_entries(parent.path()), 1U);
  }
  EXPECT_EQ(num_entries(parent.path()), 0U);
}

TEST(OutputDirectory, RefusesATargetThatExistsAtTheStartOrAppearsMeanwhile) {
  const TempDirectory parent;
  const fs::path target = parent.file("final");
  auto directory = OutputDirectory::create(target);
  put(directory, "new");
  fs::create_directory(target);
  std::ofstream(target / "file") << "theirs";
  expect_error(ExitCode::kOutputFailed, {target.string(), "is there already"}, [&] { directory.commit(); });
  expect_error(ExitCode::kOutputFailed, {target.string(), "is there already"},
               [&] { OutputDirectory::create(target); });
  EXPECT_EQ(content(target / "file"), "theirs");
}

TEST(OutputDirectory, ListsTheChecksumsOfItsFiles) {
  const TempDirectory parent;
  const auto source = parent.write("source", "copied");
  for (const ChecksumKind kind : {ChecksumKind::kSha256, ChecksumKind::kXxh128}) {
    const fs::path target = parent.file(ChecksumList::file_name(kind));
    auto directory = OutputDirectory::create(target, kind);
    directory.write_file("written", "new");
    directory.copy_in(InputFile::open(source), "copy");
    directory.commit();
    const ChecksumList list = ChecksumList::read(target, kind);
    EXPECT_THAT(list.entries(), testing::ElementsAre(testing::Key("copy"), testing::Key("written")));
    list.verify(target);
  }
}

TEST(OutputDirectory, RemovesWhatAKilledProcessLeftButNothingThatIsBeingFilled) {
  const TempDirectory parent;
  const fs::path target = parent.file("final");
  fs::create_directory(parent.file(".final.partial-0123abcd"));
  fs::create_directory(parent.file(".other.partial-0123abcd"));
  const auto being_filled = OutputDirectory::create(target);
  EXPECT_FALSE(fs::exists(parent.file(".final.partial-0123abcd")));
  const auto second = OutputDirectory::create(target);
  EXPECT_TRUE(fs::exists(being_filled.path()));
  EXPECT_TRUE(fs::exists(second.path()));
  EXPECT_TRUE(fs::exists(parent.file(".other.partial-0123abcd")));
}

TEST(OutputDirectory, AParentThatIsAFileIsAnErrorWithItsName) {
  const TempDirectory parent;
  const auto file = parent.write("file", "");
  expect_error(ExitCode::kOutputFailed, {file.string()}, [&] { OutputDirectory::create(file / "final"); });
}

}  // namespace
}  // namespace rp
