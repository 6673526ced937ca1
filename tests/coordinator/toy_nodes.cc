#include "tests/coordinator/toy_nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "nodes/agreement.h"
#include "tests/coordinator/toy_workers.h"

namespace rp::test {

namespace {

// Waits for the end of NodesSettings::meanwhile, which may call the coordinator.
class Meanwhile {
 public:
  explicit Meanwhile(std::shared_future<void> end) : end_(std::move(end)) {}
  ~Meanwhile() { end_.wait(); }
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

 private:
  const std::shared_future<void> end_;
};

ToyResult run_node(const ToyConfig& config, const NodesSettings& nodes, NodeNetwork& network,
                   const std::shared_future<void>& meanwhile) {
  const NodePlace place = network.place();
  NodeAgreement agreement(network);
  RunSettings settings{.num_workers = nodes.workers[static_cast<std::size_t>(place.node)],
                       .plan = nodes.plan,
                       .fits_device = nodes.fits_device,
                       .check_consistency = nodes.check_consistency,
                       .serve = nodes.serve};
  const auto store = Store::create(toy_store_settings(settings), toy_catalogue(config, place, nodes.reduce));
  write_initial_weights(*store);
  Workers workers(*store, settings, config);
  CoordinatorOptions options = toy_coordinator_options(config, settings, workers, *store);
  options.network = &network;
  options.pipelines[0].nodes_of_rounds = deal_rounds(config.rounds_per_step, nodes.workers);
  Coordinator coordinator(*store, std::move(options));
  const WorkerWatch watch(workers, coordinator);
  const Meanwhile end(meanwhile);
  ToyResult result = train_toy(*store, coordinator, config, nodes.after_round);
  if (const std::exception_ptr error = coordinator.finish()) std::rethrow_exception(error);
  agreement.finish();
  network.finish();
  return result;
}

}  // namespace

std::vector<ToyResult> run_toy_on_nodes(const ToyConfig& config, const NodesSettings& settings) {
  const auto num_nodes = static_cast<int>(settings.workers.size());
  LocalNetwork network(num_nodes, settings.network);
  std::vector<ToyResult> results(settings.workers.size());
  std::vector<std::exception_ptr> errors(settings.workers.size());
  const std::shared_future<void> meanwhile = std::async(std::launch::async, [&] {
                                               if (settings.meanwhile) settings.meanwhile(network);
                                             }).share();
  std::vector<std::thread> threads;
  for (int node = 0; node < num_nodes; ++node) {
    threads.emplace_back([&, node] {
      const auto index = static_cast<std::size_t>(node);
      ToyConfig own = config;
      if (node == 0 && settings.change_first) settings.change_first(own);
      try {
        results[index] = run_node(own, settings, network.node(node), meanwhile);
      } catch (...) {
        errors[index] = std::current_exception();
        network.node(node).stop();  // others that finish do not wait for it
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

void expect_reference_on_nodes(const ToyConfig& config, const NodesSettings& settings) {
  const std::vector<ToyResult> results = run_toy_on_nodes(config, settings);
  const auto num_nodes = static_cast<int>(results.size());
  const ToyResult expected = toy_reference(config);
  const auto n = static_cast<std::uint64_t>(config.num_elements);
  for (int node = 0; node < num_nodes; ++node) {
    SCOPED_TRACE(testing::Message() << "node " << node);
    const ToyResult& actual = results[static_cast<std::size_t>(node)];
    EXPECT_TRUE(same_numbers(actual.losses, expected.losses));
    EXPECT_TRUE(same_numbers(actual.norms, expected.norms));
    const Catalogue catalogue = toy_catalogue(config, {.node = node, .num_nodes = num_nodes});
    for (const GroupId group : catalogue.weight_groups().indices()) {
      const bool has_all = config.dtype == DType::kFloat32;  // the working copies are the masters
      const ElementRange owned = catalogue.owned(group);
      for (std::uint64_t i = has_all ? 0 : owned.begin; i < (has_all ? n : std::min(owned.end, n)); ++i) {
        ASSERT_EQ(actual.masters[group.value() * n + i], expected.masters[group.value() * n + i])
            << "group " << group.value() << ", element " << i;
      }
    }
  }
}

}  // namespace rp::test
