#include "common/files/direct_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "common/files/output_file.h"
#include "common/system/fd.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string content_of(const std::filesystem::path& path) {
  std::string content(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(content.data(), static_cast<std::streamsize>(content.size()));
  return content;
}

std::string random_bytes(std::size_t size) {
  std::mt19937_64 random(size + 1);
  std::string bytes(size, '\0');
  for (std::size_t begin = 0; begin < size; begin += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + begin, &word, std::min(sizeof word, size - begin));
  }
  return bytes;
}

UniqueFd new_file(const std::filesystem::path& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600));
}

// Returns whether the file system of `directory` accepts direct writes.
bool takes_direct_writes(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "probe";
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0600));
  alignas(4096) static char block[4096];
  const bool takes = fd && ::write(fd.get(), block, sizeof block) == static_cast<ssize_t>(sizeof block);
  std::filesystem::remove(path);
  return takes;
}

TEST(DirectWriter, WritesPastThePageCacheWhereItCan) {
  const TempDirectory directory;
  const UniqueFd fd = new_file(directory.file("a"));
  DirectWriter writer(fd.get());
  const std::string content = random_bytes(5 * kMiB);
  EXPECT_EQ(writer.write(content.data(), content.size()), 0);
  EXPECT_EQ(writer.is_direct(), takes_direct_writes(directory.path()));
  EXPECT_EQ(writer.finish(), 0);
}

// Writes everything in pieces whose sizes differ from the writer's.
int write_all(DirectWriter& writer, const std::string& content) {
  std::mt19937_64 random(7);
  for (std::size_t done = 0; done < content.size();) {
    const std::size_t part = std::min<std::size_t>(random() % (3 * kMiB) + 1, content.size() - done);
    if (const int error = writer.write(content.data() + done, part); error != 0) return error;
    done += part;
  }
  return writer.finish();
}

// Runs on a disk, and in memory, where the file system of older kernels accepts no direct writes.
TEST(DirectWriter, WritesEveryByteWhateverTheSizes) {
  for (const char* place : {"", "/dev/shm"}) {
    const TempDirectory directory;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, 4 * kMiB,
                                   4 * kMiB + 1, 13 * kMiB + 12345}) {
      const std::filesystem::path path =
          *place == '\0' ? directory.file(std::to_string(size))
                         : std::filesystem::path(place) / ("direct-writer-test-" + std::to_string(getpid()));
      const std::string content = random_bytes(size);
      const UniqueFd fd = new_file(path);
      DirectWriter writer(fd.get());
      EXPECT_EQ(write_all(writer, content), 0);
      EXPECT_TRUE(content_of(path) == content) << size << " bytes in " << path;
      EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_DIRECT, 0) << "what comes after it may be written as usual";
      std::filesystem::remove(path);
    }
  }
}

TEST(DirectWriter, ReturnsWhatWentWrong) {
  const TempDirectory directory;
  const UniqueFd fd = new_file(directory.file("a"));
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = 6 * kMiB + 100, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  DirectWriter writer(fd.get());
  const int error = write_all(writer, random_bytes(9 * kMiB));
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(error, EFBIG);
}

// A checkpoint's files are written in this way.
TEST(DirectWriter, IsWhatLargeOutputFilesAreWrittenBy) {
  struct Size : OutputFile::Observer {
    explicit Size(std::uint64_t& bytes) : bytes(bytes) {}
    void on_write(const void*, std::uint64_t more) override { bytes += more; }
    void on_commit() override { ++bytes; }
    std::uint64_t& bytes;
  };
  const TempDirectory directory;
  const std::string content = random_bytes(17 * kMiB + 3);
  std::uint64_t observed = 0;
  OutputFile file = OutputFile::create(directory.file("large"), content.size(), std::make_unique<Size>(observed));
  file.write(content.data(), 5);
  file.write(content.data() + 5, content.size() - 5);
  EXPECT_EQ(file.bytes_written(), content.size());
  file.commit();
  EXPECT_EQ(observed, content.size() + 1);
  EXPECT_TRUE(content_of(directory.file("large")) == content);
}

}  // namespace
}  // namespace rp
