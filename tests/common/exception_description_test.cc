#include "common/exception_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <system_error>
#include "common/interrupted.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

template <typename Exception>
ExceptionDescription description_of(const Exception& exception) {
  try {
    throw exception;
  } catch (...) {
    return describe_current_exception();
  }
}

TEST(ExceptionDescription, AnErrorHasItsOwnTextAndCode) {
  const ExceptionDescription error = description_of(Error(ExitCode::kBadInput, "model.safetensors is cut off"));
  EXPECT_EQ(error.text, "model.safetensors is cut off");
  EXPECT_EQ(error.code, ExitCode::kBadInput);
  EXPECT_TRUE(error.is_error);
}

TEST(ExceptionDescription, AnErrorWithTheCodeOfUserCodeIsStillAnError) {
  const ExceptionDescription error = description_of(WorkerError("layer 3 failed", {}));
  EXPECT_EQ(error.code, ExitCode::kUserError);
  EXPECT_TRUE(error.is_error);
}

TEST(ExceptionDescription, ALackingResourceIsAnErrorWithARemedy) {
  const ExceptionDescription thread = description_of(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_THAT(thread.text, StartsWith("cannot start a thread: "));
  EXPECT_THAT(thread.text, EndsWith("; raise the limit on processes (ulimit -u)"));
  EXPECT_EQ(thread.code, ExitCode::kNoResource);
  EXPECT_TRUE(thread.is_error);
  const ExceptionDescription memory = description_of(std::bad_alloc());
  EXPECT_EQ(memory.text, "there is no memory left for this process; give the job more");
  EXPECT_EQ(memory.code, ExitCode::kNoResource);
  EXPECT_TRUE(memory.is_error);
}

TEST(ExceptionDescription, AnyOtherExceptionIsOneOfUserCode) {
  const ExceptionDescription system = description_of(std::system_error(EIO, std::generic_category()));
  EXPECT_EQ(system.text, std::system_error(EIO, std::generic_category()).what());
  EXPECT_EQ(system.code, ExitCode::kUserError);
  EXPECT_FALSE(system.is_error);
  const ExceptionDescription standard = description_of(std::runtime_error("a user's exception"));
  EXPECT_EQ(standard.text, "a user's exception");
  EXPECT_EQ(standard.code, ExitCode::kUserError);
  EXPECT_FALSE(standard.is_error);
  const ExceptionDescription unknown = description_of(7);
  EXPECT_EQ(unknown.text, "an exception of unknown type");
  EXPECT_EQ(unknown.code, ExitCode::kUserError);
  EXPECT_FALSE(unknown.is_error);
}

// What the end of a Session asks: whether the exception that destroys it is an Interrupted.
TEST(Interrupted, ExistsWhileItUnwindsTheStack) {
  struct Session {
    bool* exists;
    ~Session() { *exists = interrupted_exists(); }
  };
  bool exists = false;
  const auto end_by = [&](auto do_throw) {
    try {
      const Session session{&exists};
      do_throw();
    } catch (const std::exception&) {}
    return exists;
  };
  EXPECT_TRUE(end_by([] { throw Interrupted(15); }));
  EXPECT_FALSE(end_by([] { throw std::runtime_error("x"); }));
  EXPECT_TRUE(end_by([] {
    try {
      throw Interrupted(15);
    } catch (const Interrupted&) {
      throw;
    }
  }));
  EXPECT_FALSE(end_by([] {
    try {
      throw Interrupted(15);
    } catch (const Interrupted&) {
      throw std::runtime_error("the checkpoint cannot be written");
    }
  }));
  EXPECT_FALSE(interrupted_exists());
}

}  // namespace
}  // namespace rp
