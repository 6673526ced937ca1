#include "common/files/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ReplaceFile, WritesANewOneOrTakesTheOldOnesPlace) {
  const TempDirectory directory;
  const std::filesystem::path path = directory.file("page.html");
  replace_file(path, "first");
  EXPECT_EQ(content_of(path), "first");
  replace_file(path, "2");
  EXPECT_EQ(content_of(path), "2");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1)
      << "nothing is left next to it";
}

TEST(ReplaceFile, RefusesWhatIsNoFileAndWhereThereIsNoDirectory) {
  const TempDirectory directory;
  expect_error(ExitCode::kOutputFailed, {directory.path().string(), "not a regular file"},
               [&] { replace_file(directory.path(), "a"); });
  expect_error(ExitCode::kOutputFailed, {"none/page.html", "cannot be created"},
               [&] { replace_file(directory.file("none/page.html"), "a"); });
}

// The path of a log may already be one of these.
TEST(KeptFile, IsNeverALinkAPipeOrADevice) {
  const TempDirectory directory;
  const auto open = [](const std::filesystem::path& path) {
    return open_kept_file(path, O_WRONLY | O_APPEND, 0644, "choose another");
  };
  const std::filesystem::path target = directory.write("target", "theirs");
  std::filesystem::create_symlink(target, directory.file("link"));
  std::filesystem::create_symlink("nowhere", directory.file("dangling"));
  ASSERT_EQ(mkfifo(directory.file("pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "dangling"}) {
    expect_error(ExitCode::kOutputFailed, {name, "it is a link; choose another"},
                 [&] { (void)open(directory.file(name)); });
  }
  expect_error(ExitCode::kOutputFailed, {"pipe", "it is not a regular file"},
               [&] { (void)open(directory.file("pipe")); });
  expect_error(ExitCode::kOutputFailed, {"/dev/null", "it is not a regular file"}, [&] { (void)open("/dev/null"); });
  EXPECT_EQ(content_of(target), "theirs");
  EXPECT_FALSE(std::filesystem::exists(directory.file("nowhere")));
  for (const char* text : {"a", "b"}) {
    const UniqueFd file = open(directory.file("log"));
    EXPECT_EQ(write(file.get(), text, 1), 1);
  }
  EXPECT_EQ(content_of(directory.file("log")), "ab");
}

TEST(PipeWithoutWaiting, ThatIsFullSaysSoAndOthersStillWait) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const UniqueFd copy = reopen_pipe_without_waiting(write_end.get());
  ASSERT_TRUE(copy);
  const std::array<char, 4096> page{};
  while (write(copy.get(), page.data(), page.size()) > 0) {}
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(fcntl(write_end.get(), F_GETFL) & O_NONBLOCK, 0);
  read_end.reset();
  signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(write(copy.get(), page.data(), 1), -1);
  EXPECT_EQ(errno, EPIPE);
  signal(SIGPIPE, SIG_DFL);
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  EXPECT_FALSE(reopen_pipe_without_waiting(file.get()));
}

}  // namespace
}  // namespace rp
