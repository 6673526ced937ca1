#include "common/system/nameless_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

TEST(NamelessFile, IsForThisUserAloneAndLeavesTheDirectoryEmpty) {
  const TempDirectory directory;
  for (const std::filesystem::path& place : {directory.path(), std::filesystem::path("/dev/shm")}) {
    const UniqueFd fd = create_nameless_file(place);
    ASSERT_TRUE(fd) << place;
    struct stat info {};
    ASSERT_EQ(fstat(fd.get(), &info), 0);
    EXPECT_EQ(info.st_nlink, 0U) << place;
    EXPECT_EQ(info.st_mode & 0777U, 0600U) << place;
    EXPECT_EQ(write(fd.get(), "ab", 2), 2) << place;
    char second = 0;
    EXPECT_EQ(pread(fd.get(), &second, 1, 1), 1) << place;
    EXPECT_EQ(second, 'b') << place;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(NamelessFile, IsNotCreatedInADirectoryThatDoesNotExist) {
  const TempDirectory directory;
  EXPECT_FALSE(create_nameless_file(directory.path() / "missing"));
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace rp
