#include "nccl/nccl_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>

#include "tests/common/expect_refusal.h"
#include "tests/nccl/fake_nccl.h"

namespace rp::test {
namespace {

TEST(NcclTable, MissingLibrarySaysWhatToInstall) {
  expect_error(ExitCode::kNoResource,
               {"--reduce nccl needs NCCL 2.18.0", "libnccl_that_does_not_exist.so.2 cannot be loaded",
                "install NVIDIA's package libnccl2 on each node, or use --reduce mpi"},
               [] { (void)load_nccl("libnccl_that_does_not_exist.so.2"); });
}

TEST(NcclTable, AnotherLibraryIsRefused) {
  expect_error(ExitCode::kNoResource, {"libc.so.6 has no ncclGetVersion"}, [] { (void)load_nccl("libc.so.6"); });
}

TEST(NcclTable, VersionIsWrittenAsNcclWritesIt) {
  EXPECT_EQ(nccl_version_text(22'809), "2.28.9");
  EXPECT_EQ(nccl_version_text(21'800), "2.18.0");
}

TEST(NcclTable, ErrorsOfOtherRanksAndOfTheGpuDiffer) {
  FakeNccl nccl;
  const auto code_of = [](NcclResult result) {
    try {
      check_nccl(FakeNccl::table(), result, "exchanging gradients");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("exchanging gradients: NCCL reports: "));
      const bool names_network = std::string(error.what()).find("NCCL_SOCKET_IFNAME") != std::string::npos;
      EXPECT_EQ(names_network, error.code() == ExitCode::kNodeLost);
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of(NcclResult::kSuccess), ExitCode::kOk);
  EXPECT_EQ(code_of(NcclResult::kInProgress), ExitCode::kOk);
  EXPECT_EQ(code_of(NcclResult::kRemoteError), ExitCode::kNodeLost);
  EXPECT_EQ(code_of(NcclResult::kSystemError), ExitCode::kNodeLost);
  EXPECT_EQ(code_of(NcclResult::kUnhandledCudaError), ExitCode::kGpuFailed);
  EXPECT_EQ(code_of(NcclResult::kInvalidUsage), ExitCode::kUserError);
}

// With NCCL's own library, where it is installed. What needs a GPU is in tests/cuda/gpu_nccl_test.cc.
TEST(NcclTable, LibraryOfThisMachineMakesIds) {
  if (dlopen(kNcclLibrary, RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no NCCL on this machine";
  const NcclTable table = load_nccl();
  int version = 0;
  EXPECT_EQ(table.get_version(&version), NcclResult::kSuccess);
  EXPECT_GE(version, static_cast<int>(NcclConfig::kVersion));
  EXPECT_STREQ(table.get_error_string(NcclResult::kInProgress), "NCCL operation in progress");
  NcclId id;
  ASSERT_EQ(table.get_unique_id(&id), NcclResult::kSuccess) << nccl_result_text(table, NcclResult::kSystemError);
  EXPECT_TRUE(std::ranges::any_of(id.bytes, [](char byte) { return byte != 0; }));
}

}  // namespace
}  // namespace rp::test
