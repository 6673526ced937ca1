#include "launcher/program_path.h"

#include <gtest/gtest.h>

#include "roundpipe/error.h"

namespace rp {
namespace {

TEST(ProgramPath, ANameIsLookedUpBesideTheLauncherThenInPath) {
  EXPECT_EQ(find_program("sh", "/bin", "/usr/bin"), "/bin/sh");
  EXPECT_EQ(find_program("sh", "/nowhere", "/nowhere:/usr/bin:/bin"), "/usr/bin/sh");
  EXPECT_EQ(find_program("/bin/sh", "/nowhere", ""), "/bin/sh");
}

TEST(ProgramPath, WhatIsMissingIs127AndWhatIsNoProgramIs126) {
  const auto code_of = [](const char* name) {
    try {
      (void)find_program(name, "/nowhere", "/bin");
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of("no-such-program"), ExitCode::kNotFound);
  EXPECT_EQ(code_of("/no/such/program"), ExitCode::kNotFound);
  EXPECT_EQ(code_of("/bin/"), ExitCode::kCannotExecute);
  EXPECT_EQ(code_of(""), ExitCode::kNotFound);
}

}  // namespace
}  // namespace rp
