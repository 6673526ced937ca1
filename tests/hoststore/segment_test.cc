#include "hoststore/memory/segment.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

constexpr int kCannotUnshare = 77;

struct FileSystem {
  const char* type;
  std::string directory = "/dev/shm";
  unsigned long flags = 0;
  std::string options{};
};

FileSystem small_shm(std::uint64_t bytes) { return {.type = "tmpfs", .options = "size=" + std::to_string(bytes)}; }

// Returns the exit status of `body` in a process that has a file system of its own mounted, or
// kCannotUnshare.
int status_with(const FileSystem& mounted, const std::function<bool()>& body) {
  const int status = test::status_of_process([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(kCannotUnshare);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(kCannotUnshare);
    if (mount(mounted.type, mounted.directory.c_str(), mounted.type, mounted.flags, mounted.options.c_str()) != 0)
      _exit(kCannotUnshare);
    return body();
  });
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool refuses_for_lack_of_room(const std::function<void()>& action, const std::string& remedy) {
  try {
    action();
  } catch (const Error& error) {
    return error.code() == ExitCode::kNoResource && std::string(error.what()).find(remedy) != std::string::npos;
  }
  return false;
}

TEST(Segment, IsWrittenThroughOneMappingAndReadThroughAnother) {
  for (const Backing backing : {Backing::kShm, Backing::kMemfd}) {
    Segment segment = Segment::create(backing, "a test");
    segment.reserve(8192);
    EXPECT_EQ(segment.bytes(), 8192U);
    const Mapping writer(segment, Access::kReadWrite, 0, 8192);
    const Segment other = Segment::attach(UniqueFd(dup(segment.fd())), "the same");
    const Mapping reader(other, Access::kReadOnly, 4096, 4096);
    writer.data()[4100] = std::byte{42};
    EXPECT_EQ(reader.data()[4], std::byte{42});
    EXPECT_NE(writer.data(), reader.data());
  }
}

TEST(Segment, HasNoNameThatOutlivesItOrThatOthersCouldOpen) {
  const Segment segment = Segment::create(Backing::kShm, "a test");
  struct stat info {};
  ASSERT_EQ(fstat(segment.fd(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0U) << "names of it, whoever else has files there";
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST(Segment, InADirectoryLeavesNoNameThereAndHasItsSpace) {
  const TempDirectory directory;
  Segment segment = Segment::create_file(directory.path().string(), "the parameters");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  struct stat info {};
  ASSERT_EQ(fstat(segment.fd(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0U);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  segment.reserve(100 * 4096);
  EXPECT_EQ(segment.bytes(), 100U * 4096U);
  EXPECT_GE(segment.allocated_bytes(), 100U * 4096U) << "a hole would end in SIGBUS on a full disk";
  const Mapping writer(segment, Access::kReadWrite, 0, 8192);
  const Segment other = Segment::attach(UniqueFd(dup(segment.fd())), "the same");
  const Mapping reader(other, Access::kReadOnly, 4096, 4096);
  writer.data()[4100] = std::byte{42};
  EXPECT_EQ(reader.data()[4], std::byte{42});
}

TEST(Segment, IsNotMadeInWhatIsNoDirectory) {
  const TempDirectory directory;
  const std::string file = directory.write("file", "text").string();
  const auto create = [](const std::string& path) { (void)Segment::create_file(path, "the parameters"); };
  expect_error(ExitCode::kUsage, {"--params-on " + file, "no directory", "give a directory"}, [&] { create(file); });
  expect_error(ExitCode::kUsage, {"--params-on " + file + "2", "No such file"}, [&] { create(file + "2"); });
}

TEST(Segment, IsNotMadeInADirectoryThatIsNotWritable) {
  const TempDirectory directory;
  const int status = status_with({.type = "tmpfs", .directory = directory.path().string(), .flags = MS_RDONLY}, [&] {
    return refuses_for_lack_of_room([&] { (void)Segment::create_file(directory.path().string(), "the parameters"); },
                                    "Read-only file system; choose a directory that you may write to");
  });
  if (status == kCannotUnshare) GTEST_SKIP() << "no mount namespace: unshare() or mount() is not permitted here";
  EXPECT_EQ(status, 0);
}

TEST(Segment, OnAFullDiskSaysNeedFreeAndRemedyAndKeepsItsLength) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const TempDirectory directory;
  const std::string path = directory.path().string();
  const int status = status_with({.type = "tmpfs", .directory = path, .options = "size=8388608"}, [&] {
    Segment segment = Segment::create_file(path, "the gradients");
    segment.reserve(4 * kMiB);
    if (!refuses_for_lack_of_room(
            [&] { segment.reserve(16 * kMiB); },
            path + ": cannot reserve 12.0 MiB for the gradients: No space left on device (4.00 MiB are free")) {
      return false;
    }
    if (segment.bytes() != 4 * kMiB) return false;
    segment.reserve(7 * kMiB);
    const Mapping mapping(segment, Access::kReadWrite, 0, segment.bytes());
    std::fill_n(mapping.data(), mapping.bytes(), std::byte{1});
    return true;
  });
  if (status == kCannotUnshare) GTEST_SKIP() << "no mount namespace: unshare() or mount() is not permitted here";
  EXPECT_EQ(status, 0);
}

TEST(Segment, IsRefusedWhereTheFileSystemCannotReserveSpace) {
  const TempDirectory directory;
  const int status = status_with({.type = "ramfs", .directory = directory.path().string()}, [&] {
    Segment segment = Segment::create_file(directory.path().string(), "the parameters");
    return refuses_for_lack_of_room([&] { segment.reserve(4096); },
                                    "cannot reserve space (fallocate); choose a directory on ext4");
  });
  if (status == kCannotUnshare) GTEST_SKIP() << "no mount namespace: unshare() or mount() is not permitted here";
  EXPECT_EQ(status, 0);
}

TEST(Segment, ThatCannotGrowSaysNeedAndRemedyAndKeepsItsLengthAndContents) {
  Segment segment = Segment::create(Backing::kMemfd, "the parameters");
  segment.reserve(4096);
  const Mapping mapping(segment, Access::kReadWrite, 0, 4096);
  mapping.data()[7] = std::byte{7};
  expect_error(ExitCode::kNoResource, {"the parameters", "4194304 TiB", "--store memfd", "free"},
               [&] { segment.reserve(std::uint64_t{1} << 62); });
  EXPECT_EQ(segment.bytes(), 4096U);
  EXPECT_EQ(mapping.data()[7], std::byte{7});
}

TEST(Segment, NeverShrinks) {
  Segment segment = Segment::create(Backing::kMemfd, "a test");
  segment.reserve(8192);
  segment.reserve(4096);
  EXPECT_EQ(segment.bytes(), 8192U);
}

TEST(Segment, IsNotMadeOfAPipeADirectoryOrAClosedDescriptor) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const UniqueFd reader(pipe_ends[0]);
  const auto attach = [](int fd) { (void)Segment::attach(UniqueFd(fd), "the gradients"); };
  expect_error(ExitCode::kNoResource, {"the gradients", "no memory file"}, [&] { attach(pipe_ends[1]); });
  expect_error(ExitCode::kNoResource, {"no memory file"}, [&] { attach(open("/", O_RDONLY | O_CLOEXEC)); });
  expect_error(ExitCode::kNoResource, {"no memory file"}, [&] { attach(-1); });
}

TEST(Segment, IsNotMappedBeyondItsEnd) {
  Segment segment = Segment::create(Backing::kMemfd, "a test");
  segment.reserve(8192);
  const auto map = [&](std::uint64_t offset, std::uint64_t bytes) {
    const Mapping mapping(segment, Access::kReadWrite, offset, bytes);
  };
  EXPECT_NO_THROW(map(4096, 4096));
  expect_error(ExitCode::kNoResource, {"has 8192 bytes", "8192 from byte 4096"}, [&] { map(4096, 8192); });
  expect_error(ExitCode::kNoResource, {"8192 bytes"}, [&] { map(UINT64_MAX - 4095, 4096); });
}

constexpr SharedHugePages kSmall = SharedHugePages::kNever;

TEST(ChooseBacking, TakesMemfdWhereThatCanHaveHugePages) {
  EXPECT_EQ(choose_backing("", 1, SharedHugePages::kAdvised), Backing::kMemfd);
  EXPECT_EQ(choose_backing("", 1, SharedHugePages::kAlways), Backing::kMemfd);
  EXPECT_EQ(choose_backing("shm", 1, SharedHugePages::kAlways), Backing::kShm) << "the user's word";
}

TEST(ChooseBacking, TakesTheWordOfTheUserAndRefusesOthers) {
  EXPECT_EQ(choose_backing("memfd", 1, kSmall), Backing::kMemfd);
  EXPECT_EQ(choose_backing("memfd", UINT64_MAX, kSmall), Backing::kMemfd);
  expect_error(ExitCode::kUsage, {"--store", "'disk'", "shm or memfd"},
               [] { (void)choose_backing("disk", 1, kSmall); });
  expect_error(ExitCode::kNoResource, {"/dev/shm", "--store memfd", "--shm-size"},
               [] { (void)choose_backing("shm", UINT64_MAX, kSmall); });
}

TEST(ChooseBacking, TakesMemfdWhereDevShmIsSmallAndRefusesForcedShmThere) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  for (const std::uint64_t shm_bytes : {8 * kMiB, 64 * kMiB}) {
    const int status = status_with(small_shm(shm_bytes), [shm_bytes] {
      if (choose_backing("", shm_bytes / 2, kSmall) != Backing::kShm) return false;
      if (choose_backing("", shm_bytes + kMiB, kSmall) != Backing::kMemfd) return false;
      return refuses_for_lack_of_room([&] { (void)choose_backing("shm", shm_bytes + kMiB, kSmall); }, "--store memfd");
    });
    if (status == kCannotUnshare) GTEST_SKIP() << "no mount namespace: unshare() or mount() is not permitted here";
    EXPECT_EQ(status, 0) << "with a /dev/shm of " << shm_bytes << " bytes";
  }
}

TEST(Segment, InAFullDevShmIsRefusedInsteadOfDyingOfABusError) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const int status = status_with(small_shm(8 * kMiB), [] {
    Segment segment = Segment::create(Backing::kShm, "a test");
    segment.reserve(4 * kMiB);
    if (!refuses_for_lack_of_room([&] { segment.reserve(16 * kMiB); }, "--store memfd")) return false;
    if (segment.bytes() != 4 * kMiB) return false;
    // The part that was reserved before the space ran out is free again.
    segment.reserve(7 * kMiB);
    const Mapping mapping(segment, Access::kReadWrite, 0, segment.bytes());
    std::fill_n(mapping.data(), mapping.bytes(), std::byte{1});
    return true;
  });
  if (status == kCannotUnshare) GTEST_SKIP() << "no mount namespace: unshare() or mount() is not permitted here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rp
