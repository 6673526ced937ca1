#include "launcher/process/watching_tool.h"

#include <gtest/gtest.h>

#include <vector>

namespace rp {
namespace {

std::string tool_in(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return watching_tool(environment.data());
}

TEST(WatchingTool, IsKnownByTheVariablesThatItSets) {
  EXPECT_EQ(tool_in({"HOME=/root", "CUDA_INJECTION64_PATH=/opt/libToolsInjection64.so"}), "CUDA_INJECTION64_PATH");
  EXPECT_EQ(tool_in({"NVTX_INJECTION64_PATH=/opt/libToolsInjection64.so"}), "NVTX_INJECTION64_PATH");
  EXPECT_EQ(tool_in({"NV_SANITIZER_INJECTION_PORT_BASE=49152"}), "NV_SANITIZER_INJECTION_PORT_BASE");
  EXPECT_EQ(tool_in({"NV_COMPUTE_PROFILER_PERFWORKS_DIR=/opt"}), "NV_COMPUTE_PROFILER_PERFWORKS_DIR");
  EXPECT_EQ(tool_in({"NV_NSIGHT_INJECTION_TRANSPORT_TYPE=1"}), "NV_NSIGHT_INJECTION_TRANSPORT_TYPE");
  EXPECT_EQ(tool_in({"NSYS_PROFILING_SESSION_ID=7"}), "NSYS_PROFILING_SESSION_ID");
}

TEST(WatchingTool, IsKnownByTheLibrariesThatArePreloadedForIt) {
  EXPECT_EQ(tool_in({"LD_PRELOAD=/usr/lib/libjemalloc.so.2:/usr/lib/libasan.so.8"}),
            "LD_PRELOAD=/usr/lib/libasan.so.8");
  EXPECT_EQ(tool_in({"LD_PRELOAD=/a/libm.so /b/libTreeLauncherTargetInjection.so"}),
            "LD_PRELOAD=/b/libTreeLauncherTargetInjection.so");
  EXPECT_EQ(tool_in({"LD_PRELOAD=/usr/libexec/valgrind/vgpreload_core-amd64-linux.so"}),
            "LD_PRELOAD=/usr/libexec/valgrind/vgpreload_core-amd64-linux.so");
}

TEST(WatchingTool, IsNotThereWhereNothingShowsIt) {
  EXPECT_EQ(tool_in({}), "");
  EXPECT_EQ(tool_in({"LD_PRELOAD=/usr/lib/libjemalloc.so.2", "CUDA_VISIBLE_DEVICES=0", "CUDA_INJECTION64_PATH="}), "");
  EXPECT_EQ(tool_in({"LD_PRELOAD=/libasan/libm.so", "MY_NSYS_PROFILING_SESSION_ID=1"}), "")
      << "a directory is no library";
}

}  // namespace
}  // namespace rp
