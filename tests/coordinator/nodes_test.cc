// Runs the toy model on several nodes, each with a coordinator, a store and workers of its own, over
// a network of threads. The results must be those of the sequential loop, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_nodes.h"
#include "tests/nodes/echo_network.h"

namespace rp::test {
namespace {

TEST(Nodes, AnyNumberOfNodesGivesTheBitsOfTheSequentialLoop) {
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 4;
  for (const std::vector<int>& workers : {std::vector{1, 1}, {2, 1}, {1, 1, 1}, {1, 2, 1, 1}}) {
    for (const bool asynchronous : {false, true}) {
      config.asynchronous = asynchronous;
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        config.dtype = dtype;
        for (const double max_grad_norm : {0.0, 0.5}) {
          config.max_grad_norm = max_grad_norm;
          SCOPED_TRACE(testing::Message() << workers.size() << " nodes, asynchronous " << asynchronous << ", "
                                          << dtype_bytes(dtype) << "-byte weights, clipping " << max_grad_norm);
          expect_reference_on_nodes(config, {.workers = workers});
        }
      }
    }
  }
}

// Three chunks: two nodes own one and two of them, four nodes one or none.
TEST(Nodes, OwnPartsOfAGroup) {
  ToyConfig config;
  config.tied = true;
  config.num_elements = 2 * 65'536 + 96;
  config.num_layers = 2;
  config.num_microbatches = 1;
  config.num_steps = 3;
  config.dtype = DType::kBFloat16;
  config.max_grad_norm = 0.5;
  for (const int num_nodes : {2, 4}) {
    config.rounds_per_step = num_nodes;
    config.asynchronous = num_nodes == 2;
    SCOPED_TRACE(testing::Message() << num_nodes << " nodes");
    expect_reference_on_nodes(config, {.workers = std::vector<int>(static_cast<std::size_t>(num_nodes), 1)});
  }
}

// Nothing moves for a skipped step, but with two working copies each node needs its weights again.
TEST(Nodes, SkipTheSameSteps) {
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 3;
  config.num_steps = 6;
  config.max_grad_norm = 0.5;
  config.overflowing_step = 3;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      config.dtype = dtype;
      SCOPED_TRACE(testing::Message() << "asynchronous " << asynchronous << ", " << dtype_bytes(dtype)
                                      << "-byte weights");
      expect_reference_on_nodes(config, {.workers = {1, 2, 1}});
    }
  }
}

// GPUs connect before their first exchange, so the coordinators have no ids of communicators to pass on.
TEST(Nodes, LeaveTheNetworkIfNoWorkerHasConnected) {
  ToyConfig config;
  config.num_steps = 0;
  config.rounds_per_step = 4;
  for (const std::vector<int>& workers : {std::vector{1, 1}, {2, 2, 2, 2}})
    (void)run_toy_on_nodes(config, {.workers = workers, .reduce = Reduce::kNccl});
}

// Weights that no program makes would be the result.
TEST(Nodes, WhoseProgramsMakeOtherCallsEndWithAnError) {
  ToyConfig config;
  config.rounds_per_step = 2;
  config.max_grad_norm = 0.5;
  for (const auto& change :
       {+[](ToyConfig& own) { own.max_grad_norm = 0.4; }, +[](ToyConfig& own) { own.num_microbatches = 4; }}) {
    try {
      (void)run_toy_on_nodes(config, {.change_first = change});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUserError);
      EXPECT_NE(std::string(error.what()).find("other calls on node 1 than on node 0"), std::string::npos)
          << error.what();
    }
  }
}

// What the table of docs/design/several-nodes.md and rp-plan assume.
TEST(NodeExchange, SendsThePiecesThatNodesOwn) {
  const std::vector<std::int64_t> chunks = {40, 3, 1};
  PipelineRequest request{.name = "model", .layers = {}, .with_sums = true};
  for (const std::int64_t rows : chunks) {
    request.layers.push_back(
        {.name = "linear", .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {rows, 65'536}}}});
  }
  for (const int num_nodes : {2, 4, 16}) {
    const NodePlace place{.node = 1, .num_nodes = num_nodes};
    const auto store = Store::create(toy_store_settings({}), Catalogue::lay_out(std::vector{request}, place));
    EchoNetwork network(place);
    NodeExchange exchange(*store, 0, network, [] {});
    MessageCount gradients, weights;
    for (const GroupId group : store->catalogue().trained_groups(0)) {
      exchange.send_gradient(UseId(group.value()));
      exchange.send_weights(group, Version(1));
      for (int node = 0; node < num_nodes; ++node) {
        const std::uint64_t owned = store->catalogue().owned_by(node, group).size();
        if (node != place.node) add(gradients, pieces_of(owned, 2));
        if (node == place.node) add(weights, pieces_of(owned, 2), num_nodes - 1);
      }
    }
    EXPECT_EQ(network.sent(NodeMessageKind::kGradient), gradients) << num_nodes << " nodes";
    EXPECT_EQ(network.sent(NodeMessageKind::kWeights), weights) << num_nodes << " nodes";
    EXPECT_GT(gradients.messages, chunks.size()) << "a part is longer than a piece, or there are several owners";
  }
}

TEST(RandomNodes, GiveTheBitsOfTheSequentialLoopInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 40 : std::atoi(runs));
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    NodesSettings settings;
    settings.workers.clear();
    for (int node = draw(random, 2, 4); node > 0; --node) settings.workers.push_back(draw(random, 1, 2));
    config.rounds_per_step = static_cast<int>(settings.workers.size()) + draw(random, 0, 3);
    config.scales_loss = draw(random, 0, 3) == 0;
    if (config.max_grad_norm > 0 && !config.scales_loss) config.overflowing_step = draw(random, 0, config.num_steps);
    settings.network = {.seed = seed, .eager_bytes = static_cast<std::size_t>(draw(random, 0, 1) * 256)};
    if (draw(random, 0, 2) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(random, 0, 2) == 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << settings.workers.size() << " nodes, " << config
                                    << ", plan '" << settings.plan << "', checked " << settings.check_consistency);
    expect_reference_on_nodes(config, settings);
  }
}

}  // namespace
}  // namespace rp::test
