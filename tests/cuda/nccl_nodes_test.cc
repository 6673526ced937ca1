// Runs the toy model on several nodes whose GPUs exchange gradients, over a driver and an NCCL
// without a GPU. The results must be those of the sequential loop, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_nodes.h"
#include "tests/coordinator/toy_workers.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/nccl_in_streams.h"
#include "tests/cuda/queued_executor.h"
#include "tests/nccl/fake_nccl.h"
#include "worker/worker.h"

namespace rp::test {
namespace {

using MakeExecutor = std::function<std::unique_ptr<QueuedExecutor>(const ToyConfig& config, const Catalogue& catalogue,
                                                                   CudaDevice& device)>;

std::unique_ptr<QueuedExecutor> make_executor(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device) {
  return std::make_unique<QueuedExecutor>(config, catalogue, device);
}

struct GpuSettings {
  std::uint64_t received_bytes = NodeGradients::Settings{}.received_bytes;
  MakeExecutor make_executor = test::make_executor;
  std::int64_t leave_ns = 60 * kNsPerSecond;  // all nodes leave, however slow the machine is
};

void serve_on_gpu(const FakeDriver& driver, Store& store, int worker, const ToyConfig& config, const GpuSettings& gpu) {
  CudaDeviceOptions options{.memory_bytes = std::uint64_t{16} << 20, .exchanges_gradients = true};
  options.registration.policy.piece_bytes = 32 * 4096;
  options.registration.policy.least_bytes = 4096;
  options.registration.policy.lock_ns = 60 * kNsPerSecond;
  CudaDevice device(driver.table(), options, [](const std::string& text) { ADD_FAILURE() << text; });
  const auto executor = gpu.make_executor(config, store.catalogue(), device);
  const NodeGradients::Settings settings{
      .connect_ns = 60 * kNsPerSecond, .leave_ns = gpu.leave_ns, .received_bytes = gpu.received_bytes};
  Worker(store, worker, device, *executor, {}, nullptr, nullptr,
         std::make_unique<NodeGradients>(FakeNccl::table(), store, worker, device, settings))
      .serve();
}

NodesSettings on_gpus(const FakeDriver& driver, int num_nodes, int workers, const GpuSettings& gpu = {}) {
  return {.workers = std::vector<int>(static_cast<std::size_t>(num_nodes), workers),
          .reduce = Reduce::kNccl,
          .fits_device = true,
          .serve = [&driver, gpu](Store& store, int worker, const ToyConfig& config, const RunSettings&) {
            try {
              serve_on_gpu(driver, store, worker, config, gpu);
            } catch (const Error& error) {
              if (error.code() != ExitCode::kNodeLost) throw;
              throw DeathOfWorker();
            }
          }};
}

void expect_reference_on_gpus(const ToyConfig& config, int num_nodes, int workers, unsigned seed,
                              const std::function<void(NodesSettings&)>& change = {}, const GpuSettings& gpu = {}) {
  const FakeDriver driver({.seed = seed, .max_delay_us = seed % 3 == 0 ? 50 : 0});
  FakeNccl nccl(in_streams_of_driver(seed));
  NodesSettings settings = on_gpus(driver, num_nodes, workers, gpu);
  settings.network.seed = seed;
  if (change) change(settings);
  expect_reference_on_nodes(config, settings);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
  EXPECT_GT(nccl.num_groups(), 0);
  EXPECT_EQ(nccl.num_calls("ncclCommDestroy"), nccl.num_calls("ncclCommInitRankConfig")) << "all leave";
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 0);
}

TEST(NcclNodes, AnyNumberOfNodesGivesTheBitsOfTheSequentialLoop) {
  ToyConfig config;
  config.tied = true;
  for (const int num_nodes : {2, 3}) {
    config.rounds_per_step = 2 * num_nodes;
    for (const int workers : {1, 2}) {
      for (const bool asynchronous : {false, true}) {
        config.asynchronous = asynchronous;
        config.dtype = workers == 1 ? DType::kFloat32 : DType::kBFloat16;
        config.max_grad_norm = asynchronous ? 0 : 0.5;
        SCOPED_TRACE(testing::Message() << num_nodes << " nodes of " << workers << " workers, asynchronous "
                                        << asynchronous);
        expect_reference_on_gpus(config, num_nodes, workers, static_cast<unsigned>(num_nodes + workers));
      }
    }
  }
}

// Three chunks: two nodes own one and two of them, four nodes one or none. A piece has all of them, or one of each
// node.
TEST(NcclNodes, OwnPartsOfAGroup) {
  ToyConfig config;
  config.tied = true;
  config.num_elements = 2 * 65'536 + 96;
  config.num_layers = 2;
  config.num_microbatches = 1;
  config.num_steps = 2;
  config.dtype = DType::kBFloat16;
  config.max_grad_norm = 0.5;
  for (const int num_nodes : {2, 4}) {
    config.rounds_per_step = num_nodes;
    for (const GpuSettings& gpu : {GpuSettings{}, GpuSettings{.received_bytes = 0}}) {
      SCOPED_TRACE(testing::Message() << num_nodes << " nodes, memory for " << gpu.received_bytes << " bytes");
      expect_reference_on_gpus(config, num_nodes, 1, 1, {}, gpu);
    }
  }
}

// Three evaluations are one more on one of two nodes, whose later tasks must not go to other workers.
TEST(NcclNodes, ADifferentNumberOfEvaluationsChangesNothing) {
  ToyConfig config;
  config.rounds_per_step = 2;
  config.num_evaluations = 3;
  expect_reference_on_gpus(config, 2, 2, 1);
  expect_reference_on_gpus(config, 2, 3, 2);
}

TEST(NcclNodes, GiveTheBitsOfTheSequentialLoopInAnyConfiguration) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    const int num_nodes = draw(random, 2, 3);
    config.rounds_per_step = num_nodes * draw(random, 1, 2);
    config.num_evaluations = draw(random, 0, 3);
    const int workers = draw(random, 1, 3);
    const bool by_hand = draw(random, 0, 1) == 0;
    const std::string plan = by_hand ? plan_text(random_plan(random, config.num_layers), config.num_layers) : "";
    const bool is_checked = draw(random, 0, 2) == 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << num_nodes << " nodes of " << workers << ", " << config
                                    << ", plan '" << plan << "', checked " << is_checked);
    expect_reference_on_gpus(config, num_nodes, workers, seed, [&](NodesSettings& settings) {
      settings.plan = plan;
      settings.check_consistency = is_checked;
    });
  }
}

// Skipped steps, and gradients that are scaled.
TEST(NcclNodes, SkipTheSameSteps) {
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 2;
  config.max_grad_norm = 0.5;
  config.overflowing_step = 3;
  expect_reference_on_gpus(config, 2, 2, 1);
  config.overflowing_step = 0;
  config.scales_loss = true;
  config.dtype = DType::kBFloat16;
  expect_reference_on_gpus(config, 2, 2, 2);
}

// On the other node, the call that begins the next round would never be made.
TEST(NcclNodes, RefuseToWaitForARoundThatOthersCannotJoin) {
  ToyConfig config;
  config.rounds_per_step = 2;
  const std::string reason =
      " after 1 of 2 rounds that the 2 nodes compute together (--reduce nccl): first call "
      "forward_backward() of pipeline 0 1 more time, or use --reduce mpi";
  using Early = std::function<void(Coordinator&, const Round&)>;
  const std::vector<std::pair<std::string, Early>> cases = {
      {"losses or outputs of a round are read", [](Coordinator& run, const Round& round) { run.wait_forward(round); }},
      {"a call waits for all rounds", [](Coordinator& run, const Round&) { run.synchronize(); }},
      {"the program ends",
       [](Coordinator& run, const Round&) {
         if (const std::exception_ptr error = run.finish()) std::rethrow_exception(error);
       }},
  };
  for (const auto& [what, early] : cases) {
    const FakeDriver driver;
    FakeNccl nccl(in_streams_of_driver(1));
    NodesSettings settings = on_gpus(driver, 2, 1);
    settings.after_round = early;
    try {
      (void)run_toy_on_nodes(config, settings);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_EQ(error.what(), what + reason);
    }
  }
}

// A node that is lost does not exchange any more. The GPUs of the others wait for it. Its loss is noticed
// by the network, or by NCCL first.
TEST(NcclNodes, ALostNodeEndsTheWaitOfTheOthers) {
  ToyConfig config;
  config.rounds_per_step = 3;
  for (const bool notices_loss : {true, false}) {
    SCOPED_TRACE(notices_loss);
    const FakeDriver driver;
    FakeNcclSettings of_nccl = in_streams_of_driver(1);
    of_nccl.notices_loss = notices_loss;
    FakeNccl nccl(of_nccl);
    // A node that has exchanged all waits for the lost one to leave.
    NodesSettings settings = on_gpus(driver, 3, 2, {.leave_ns = NodeGradients::Settings{}.leave_ns});
    nccl.hang(1);
    settings.meanwhile = [&](LocalNetwork& network) {
      while (nccl.num_calls("ncclSend") == 0) std::this_thread::yield();
      for (const int node : {0, 2}) {
        network.node(node).report_failure(std::make_exception_ptr(Error(ExitCode::kNodeLost, "node 1 is lost")));
      }
      network.node(1).report_failure(std::make_exception_ptr(Error(ExitCode::kNodeLost, "node 0 is lost")));
    };
    try {
      (void)run_toy_on_nodes(config, settings);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNodeLost) << error.what();
    }
    EXPECT_EQ(nccl.num_calls("ncclCommAbort") + nccl.num_calls("ncclCommDestroy"),
              nccl.num_calls("ncclCommInitRankConfig"));
  }
}

// Nothing but the error that NCCL has noted shows that an exchange will never end.
TEST(NcclNodes, AnErrorOfNcclEndsTheRun) {
  ToyConfig config;
  config.rounds_per_step = 2;
  const FakeDriver driver;
  FakeNccl nccl(in_streams_of_driver(1));
  NodesSettings settings = on_gpus(driver, 2, 1);
  nccl.hang(1);
  settings.meanwhile = [&](LocalNetwork&) {
    while (nccl.num_calls("ncclSend") == 0) std::this_thread::yield();
    nccl.report(0, NcclResult::kSystemError);
  };
  try {
    (void)run_toy_on_nodes(config, settings);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("worker 0 was lost"));
  }
}

// Has a kernel that the warm-up does not know, and launches it while an exchange is enqueued.
class LateKernel : public QueuedExecutor {
 public:
  LateKernel(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device, FakeNccl& nccl,
             std::atomic<bool>& is_loading)
      : QueuedExecutor(config, catalogue, device), device_(device), nccl_(nccl), is_loading_(is_loading) {}

  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override {
    if (num_runs_++ == kFirstLate) {
      while (nccl_.num_calls("ncclSend") == 0) std::this_thread::yield();
      is_loading_.store(true);
      FakeDriver::load(device_.compute_stream(), "late");
    }
    QueuedExecutor::run(task, microbatch, inputs, outputs);
  }

 private:
  static constexpr int kFirstLate = 2;  // of the backward stage: the fused stage has been computed
  CudaDevice& device_;
  FakeNccl& nccl_;
  std::atomic<bool>& is_loading_;
  int num_runs_ = 0;
};

// The driver completes all enqueued work before it loads a kernel, and the thread that computes waits for that. Only an
// abort ends this.
TEST(NcclNodes, AnErrorOfNcclEndsALaunchThatWaits) {
  ToyConfig config;
  config.rounds_per_step = 2;
  config.num_microbatches = 1;
  config.num_layers = 2;
  const FakeDriver driver;
  FakeNccl nccl(in_streams_of_driver(1));
  std::atomic<bool> is_loading{false};
  const GpuSettings gpu{.make_executor = [&](const ToyConfig& own, const Catalogue& catalogue, CudaDevice& device) {
    return std::make_unique<LateKernel>(own, catalogue, device, nccl, is_loading);
  }};
  NodesSettings settings = on_gpus(driver, 2, 1, gpu);
  settings.plan = "forward 0 | fused 1 | backward 0";
  nccl.hang(1);
  settings.meanwhile = [&](LocalNetwork&) {
    while (!is_loading.load()) std::this_thread::yield();
    nccl.report(0, NcclResult::kSystemError);
  };
  EXPECT_THROW((void)run_toy_on_nodes(config, settings), Error);
}

}  // namespace
}  // namespace rp::test
