#include "common/output_file.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1) << "nothing is left beside it";
}

TEST(ReplaceFile, RefusesWhatIsNoFileAndWhereThereIsNoDirectory) {
  const TempDirectory directory;
  expect_error(ExitCode::kOutputFailed, {directory.path().string(), "not a regular file"}, [&] { replace_file(directory.path(), "a"); });
  expect_error(ExitCode::kOutputFailed, {"none/page.html", "cannot be created"}, [&] { replace_file(directory.file("none/page.html"), "a"); });
}

}  // namespace
}  // namespace rp
