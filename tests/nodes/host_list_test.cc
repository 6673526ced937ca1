#include "launcher/hosts/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp::test {
namespace {

std::string refusal(const std::string& value) {
  try {
    (void)parse_hosts("--hosts", value);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
}

TEST(HostList, HasNamesAndPerhapsNumbers) {
  EXPECT_EQ(
      parse_hosts("--hosts", "a:8,b.example.org,c:1"),
      (std::vector<Host>{{.name = "a", .num_workers = 8}, {.name = "b.example.org"}, {.name = "c", .num_workers = 1}}));
}

TEST(HostList, RefusesWhatNamesNoHostOrOneTwice) {
  EXPECT_THAT(refusal(""), testing::HasSubstr("--hosts names no host"));
  EXPECT_THAT(refusal("a,,b"), testing::HasSubstr("'' is no host"));
  EXPECT_THAT(refusal("a:8,a:4"), testing::HasSubstr("names a twice"));
  EXPECT_THAT(refusal("a:0"), testing::HasSubstr("\"0\""));
  EXPECT_THAT(refusal("a:x"), testing::HasSubstr("\"x\""));
  EXPECT_THAT(refusal("a b"), testing::HasSubstr("'a b' is no host"));
}

TEST(HostFile, HasAHostInEachLine) {
  const TempDirectory directory;
  const std::filesystem::path path = directory.path() / "hosts";
  std::ofstream(path) << "# two nodes\na slots=4\n\nb:2  # the small one\nc\n";
  EXPECT_EQ(read_hostfile(path),
            (std::vector<Host>{{.name = "a", .num_workers = 4}, {.name = "b", .num_workers = 2}, {.name = "c"}}));
  std::ofstream(path) << "a\nb max_slots=4\n";
  try {
    (void)read_hostfile(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("line 2: 'max_slots=4' is not known"));
  }
  EXPECT_THROW((void)read_hostfile(directory.path() / "none"), Error);
}

}  // namespace
}  // namespace rp::test
