#include "common/files/directory_names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

TEST(DirectoryNames, AreSorted) {
  const TempDirectory directory;
  for (const char* name : {"b", "a", ".hidden"}) std::ofstream(directory.path() / name) << name;
  std::filesystem::create_directory(directory.path() / "c");
  ASSERT_EQ(symlink("nowhere", (directory.path() / "d").c_str()), 0);
  std::error_code failure;
  EXPECT_EQ(names_in(directory.path(), failure), (std::vector<std::string>{".hidden", "a", "b", "c", "d"}));
  EXPECT_FALSE(failure);
}

TEST(DirectoryNames, OfWhatCannotBeReadAreNone) {
  const TempDirectory directory;
  std::error_code failure;
  EXPECT_TRUE(names_in(directory.path() / "absent", failure).empty());
  EXPECT_EQ(failure, std::errc::no_such_file_or_directory);
  std::ofstream(directory.path() / "file") << "";
  EXPECT_TRUE(names_in(directory.path() / "file", failure).empty());
  EXPECT_EQ(failure, std::errc::not_a_directory);
}

}  // namespace
}  // namespace rp
