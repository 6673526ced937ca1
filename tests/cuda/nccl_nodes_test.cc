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

void serve_on_gpu(const FakeDriver& driver, Store& store, int worker, const ToyConfig& config) {
  CudaDeviceOptions options{.memory_bytes = std::uint64_t{16} << 20, .exchanges_gradients = true};
  options.registration.policy.piece_bytes = 32 * 4096;
  options.registration.policy.least_bytes = 4096;
  options.registration.policy.lock_ns = 60 * kNsPerSecond;
  CudaDevice device(driver.table(), options, [](const std::string& text) { ADD_FAILURE() << text; });
  QueuedExecutor executor(config, store.catalogue(), device);
  Worker(store, worker, device, executor, {}, nullptr, nullptr,
         std::make_unique<NodeGradients>(FakeNccl::table(), store, worker, device, 60 * kNsPerSecond))
      .serve();
}

NodesSettings on_gpus(const FakeDriver& driver, int num_nodes, int workers) {
  return {.workers = std::vector<int>(static_cast<std::size_t>(num_nodes), workers),
          .reduce = Reduce::kNccl,
          .fits_device = true,
          .serve = [&driver](Store& store, int worker, const ToyConfig& config, const RunSettings&) {
            try {
              serve_on_gpu(driver, store, worker, config);
            } catch (const Error& error) {
              if (error.code() != ExitCode::kNodeLost) throw;
              throw DeathOfWorker();
            }
          }};
}

void expect_reference_on_gpus(const ToyConfig& config, int num_nodes, int workers, unsigned seed,
                              const std::function<void(NodesSettings&)>& change = {}) {
  const FakeDriver driver({.seed = seed, .max_delay_us = seed % 3 == 0 ? 50 : 0});
  FakeNccl nccl(in_streams_of_driver(seed));
  NodesSettings settings = on_gpus(driver, num_nodes, workers);
  settings.network.seed = seed;
  if (change) change(settings);
  expect_reference_on_nodes(config, settings);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
  EXPECT_GT(nccl.num_groups(), 0);
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

// Three chunks: two nodes own one and two of them, four nodes one or none.
TEST(NcclNodes, OwnPartsOfAGroup) {
  ToyConfig config;
  config.tied = true;
  config.num_elements = 2 * 65'536 + 96;
  config.num_layers = 2;
  config.num_microbatches = 1;
  config.num_steps = 1;
  config.dtype = DType::kBFloat16;
  config.max_grad_norm = 0.5;
  for (const int num_nodes : {2, 4}) {
    config.rounds_per_step = num_nodes;
    SCOPED_TRACE(testing::Message() << num_nodes << " nodes");
    expect_reference_on_gpus(config, num_nodes, 1, 1);
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
    NodesSettings settings = on_gpus(driver, 3, 2);
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

}  // namespace
}  // namespace rp::test
