// Runs NodeCommunicator with NCCL's own library on a GPU. NCCL refuses two ranks on one GPU, so each
// node is alone, and exchanges with itself. Not yet run on a GPU.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "tests/cuda/gpu_node.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

// Calls `body` in processes of their own, because CUDA must not be used before a fork. Returns whether
// none has failed.
template <typename Body>
bool all_succeed(int num_processes, const Body& body) {
  std::vector<pid_t> processes;
  for (int i = 0; i < num_processes; ++i) processes.push_back(start_process(body));
  bool good = true;
  for (const pid_t process : processes) good = wait_for_process(process) == 0 && good;
  return good;
}

bool has_gpu_and_nccl() {
  return all_succeed(1, [] {
    (void)cuda_driver();
    (void)load_nccl();
    return true;
  });
}

class GpuNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu_and_nccl()) GTEST_SKIP() << "no CUDA device or no NCCL: why is said above";
  }
};

// Each process stands for a worker of its own run.
TEST_F(GpuNccl, EachWorkerExchangesWithItself) {
  for (const int num_workers : {1, 2}) {
    EXPECT_TRUE(all_succeed(num_workers,
                            [] {
                              const NcclTable nccl = load_nccl();
                              constexpr std::uint64_t kBytes = (std::uint64_t{16} << 20) + 96,
                                                      kPieceBytes = std::uint64_t{3} << 20;
                              GpuNode node(cuda_driver(), nccl, {}, kBytes, kPieceBytes);
                              expect_exchange_with_itself(node, nccl, kBytes, kPieceBytes);
                              return !testing::Test::HasFailure();
                            }))
        << num_workers << " workers";
  }
}

TEST_F(GpuNccl, NodeThatNeverComesIsGivenUp) {
  EXPECT_TRUE(all_succeed(1, [] {
    const NcclTable nccl = load_nccl();
    GpuNode node(cuda_driver(), nccl, {.node = 0, .num_nodes = 2}, 4096, 4096);
    NcclId id;
    check_nccl(nccl, nccl.get_unique_id(&id), "making an id");
    try {
      (void)node.connect(id, 3 * kNsPerSecond);
    } catch (const Error& error) {
      return error.code() == ExitCode::kNodeLost;
    }
    return false;
  }));
}

TEST_F(GpuNccl, AbortEndsAWaitForNodesThatJoin) {
  EXPECT_TRUE(all_succeed(1, [] {
    const NcclTable nccl = load_nccl();
    GpuNode node(cuda_driver(), nccl, {.node = 0, .num_nodes = 2}, 4096, 4096);
    NcclId id;
    check_nccl(nccl, nccl.get_unique_id(&id), "making an id");
    std::thread other([&node] {
      sleep_until_ns(now_ns() + kNsPerSecond);
      node.communicator().abort();
      node.communicator().abort();
    });
    const bool has_connected = node.connect(id, 60 * kNsPerSecond);
    other.join();
    return !has_connected;
  }));
}

}  // namespace
}  // namespace rp::test
