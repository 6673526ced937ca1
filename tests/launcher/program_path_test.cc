#include "launcher/machine/program_path.h"

#include <gtest/gtest.h>

#include <fstream>

#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

TEST(ProgramPath, ANameIsLookedUpNextToTheLauncherThenInPath) {
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

TEST(ProgramPath, ThePluginForGpusIsLookedForWhereItsBuildOrInstallationPutsIt) {
  namespace fs = std::filesystem;
  const TempDirectory temp;
  const fs::path& root = temp.path();
  for (const char* directory : {"bin", "lib", "other"}) fs::create_directories(root / directory);
  EXPECT_EQ(find_cuda_plugin(root / "bin", (root / "other").string()), "");
  std::ofstream(root / "other" / kCudaPlugin) << "";
  EXPECT_EQ(find_cuda_plugin(root / "bin", ""), "");
  EXPECT_EQ(find_cuda_plugin(root / "bin", "/nowhere:" + (root / "other").string()), root / "other" / kCudaPlugin);
  std::ofstream(root / "lib" / kCudaPlugin) << "";
  EXPECT_EQ(find_cuda_plugin(root / "bin", (root / "other").string()), root / "bin/../lib" / kCudaPlugin);
  std::ofstream(root / "bin" / kCudaPlugin) << "";
  EXPECT_EQ(find_cuda_plugin(root / "bin", ""), root / "bin" / kCudaPlugin);
}

}  // namespace
}  // namespace rp
