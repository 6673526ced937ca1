#include "coordinator/exchange/plan_exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>

#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_model.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

bool same(const Plan& a, const Plan& b) {
  return a.forward == b.forward && a.fused_start == b.fused_start && a.backward == b.backward;
}

TEST(PlanExchange, BytesHaveAllOfAPlan) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const int num_layers = draw(random, 1, 12);
    const Plan plan = random_plan(random, num_layers);
    EXPECT_TRUE(same(plan_of_bytes(bytes_of_plan(plan, num_layers)), plan)) << plan_text(plan, num_layers);
  }
}

// Nodes reach their rounds at different times. Each gets the plan that the first node had one round
// before.
TEST(PlanExchange, AllNodesUseThePlansOfTheFirstOne) {
  constexpr int kNumNodes = 5, kNumLayers = 9, kNumRounds = 20;
  LocalNetwork network(kNumNodes, {.seed = 3});
  std::vector<std::vector<Plan>> taken(kNumNodes);
  std::vector<std::unique_ptr<PlanExchange>> exchanges;
  std::vector<std::thread> threads;
  for (int node = 0; node < kNumNodes; ++node) {
    PlanExchange& plans =
        *exchanges.emplace_back(std::make_unique<PlanExchange>(network.node(node), 0, kNumLayers, [] {}));
    threads.emplace_back([&plans, &network, &own = taken[static_cast<std::size_t>(node)], node] {
      std::mt19937 random(static_cast<unsigned>(node));
      for (int round = 0; round < kNumRounds; ++round) {
        plans.begin_round(random_plan(random, kNumLayers));
        while (!plans.has_plan()) std::this_thread::yield();
        own.push_back(plans.take_plan());
      }
      network.node(node).finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::mt19937 random(0);
  Plan expected = random_plan(random, kNumLayers);
  for (std::size_t round = 0; round < kNumRounds; ++round) {
    for (const auto& plans : taken) EXPECT_TRUE(same(plans[round], expected)) << "round " << round;
    if (round > 0) expected = random_plan(random, kNumLayers);
  }
}

}  // namespace
}  // namespace rp::test
