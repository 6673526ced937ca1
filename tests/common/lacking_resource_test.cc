#include "common/lacking_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "common/system/retry.h"

namespace rp {
namespace {

using ::testing::HasSubstr;

std::system_error of(int error_number) { return {error_number, std::generic_category()}; }

TEST(LackingResource, NoFurtherThreadIs69AndNamesTheLimit) {
  const auto error = lacking_resource(of(EAGAIN));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ExitCode::kNoResource);
  EXPECT_THAT(error->what(), HasSubstr("ulimit -u"));
}

TEST(LackingResource, NoFurtherDescriptorIs69AndNamesTheFileAndTheLimit) {
  const std::filesystem::filesystem_error thrown("cannot open", "some/file",
                                                 std::error_code(EMFILE, std::generic_category()));
  const auto error = lacking_resource(thrown);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ExitCode::kNoResource);
  EXPECT_THAT(error->what(), HasSubstr("some/file"));
  EXPECT_THAT(error->what(), HasSubstr("ulimit -n"));
}

TEST(LackingResource, NoMemoryIs69) {
  EXPECT_EQ(lacking_resource(std::bad_alloc()).value().code(), ExitCode::kNoResource);
  EXPECT_EQ(lacking_resource(of(ENOMEM)).value().code(), ExitCode::kNoResource);
}

TEST(LackingResource, OtherErrorsAreNotOurs) {
  EXPECT_FALSE(lacking_resource(of(EIO)));
  EXPECT_FALSE(lacking_resource(std::runtime_error("of the user's")));
}

TEST(RetryInterrupted, ACallIsMadeAgainUntilNoSignalInterruptsIt) {
  int num_calls = 0;
  EXPECT_EQ(retry_interrupted([&] {
              errno = ++num_calls < 3 ? EINTR : EIO;
              return -1;
            }),
            -1);
  EXPECT_EQ(num_calls, 3);
  EXPECT_EQ(retry_interrupted([] { return 7; }), 7);
}

}  // namespace
}  // namespace rp
