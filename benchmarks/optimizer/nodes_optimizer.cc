// benchmarks/optimizer/nodes_optimizer.cc
// Measures how the optimizer's memory and time of a node fall with the number n of nodes that share a
// run. docs/design/several-nodes.md says: as 1/n.
//
//   nodes_optimizer [--model NAME] [--layers N] [--rounds-per-step N] [--threads N] [--nodes N,N,…] [--turns N]
//   (defaults: qwen3-0.6b, 10 decoder layers, 4, all cores, 1,2,4, 15)
//
// Needs 35 bytes of memory for each parameter with these numbers of nodes: 5.5 GB.
// For each number of nodes there is one node, the one with the largest part, with a store of its own. They do their
// steps in turns, so that a busy machine slows all of them alike. Each uses the product's MemoryGroupUpdater on what it
// owns of the decoder layers; there is no network, no embedding, and no head. A step is:
//   add      the gradients of all rounds are added to the sums. Those of the node's own rounds are whole; those of the
//            others come in pieces of 256 KiB, as from the network, but from memory that is in no cache.
//   squares  of the sums, for the norm
//   update   AdamW with fp32 masters and bf16 weights
// Times are medians of the turns. Next to each is n times the time of one node, as the median of the ratios within a
// turn: 1.00 is the n-th part. The same with the time of the processors that the process used, from which a program
// that takes its turn on them takes nothing.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <cxxopts.hpp>

#include "common/median.h"
#include "common/program_main.h"
#include "common/system/clock.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "coordinator/updates/memory_group_updater.h"
#include "hoststore/store.h"
#include "kernels/cpu/float16.h"
#include "model_files/layer_tensors.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

struct Setting {
  PipelineRequest model{};
  int num_rounds = 0;
  int num_threads = 0;
  int num_turns = 0;
  std::vector<int> nodes{};  // numbers of nodes; the first one is 1
};

// Returns the first decoder layers of a model.
PipelineRequest request_of(const std::string& model, int num_layers) {
  const ModelConfig config = config_of_model(model);
  if (num_layers < 1 || num_layers > config.num_layers())
    throw Error(ExitCode::kUsage, cat("--layers is ", num_layers, ", but ", model, " has ", config.num_layers()));
  PipelineRequest request{.name = model, .layers = {}, .with_sums = true};
  for (int layer = 1; layer <= num_layers; ++layer) {
    const LayerTensors tensors = tensors_of_layer(config, layer);
    LayerRequest& added = request.layers.emplace_back(LayerRequest{.name = tensors.name});
    for (const LayerTensor& tensor : tensors.tensors)
      added.parameters.push_back({.name = tensor.name, .dtype = DType::kBFloat16, .shape = tensor.shape});
  }
  return request;
}

struct Time {
  double wall_s = 0;
  double processor_s = 0;
};

Time now() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return {.wall_s = static_cast<double>(now_ns()) * 1e-9,
          .processor_s = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9};
}

constexpr std::array kPasses = {"add", "squares", "update", "whole step"};
using Times = std::array<Time, kPasses.size()>;

// One node with a store.
class Node {
 public:
  Node(const Setting& setting, NodePlace place)
      : place_(place),
        num_rounds_(setting.num_rounds),
        // A sparse one: what others own of weights and gradients is not used and takes no memory.
        store_(Store::create({.backing = "memfd", .is_sparse = true}, Catalogue::lay_out({setting.model}, place))),
        groups_(store_->catalogue().trained_groups(0)),
        updater_(*store_, groups_, setting.num_threads, true),
        nodes_of_rounds_(deal_rounds(num_rounds_, std::vector<int>(static_cast<std::size_t>(place.num_nodes), 1))) {
    for (const GroupId group : groups_) squares_.emplace_back(num_chunks(owned(group).size()));
  }

  [[nodiscard]] const std::vector<GroupId>& groups() const { return groups_; }

  // Writes everything that the node keeps for a group. Masters and gradients get numbers as in training, because
  // processors take another time for zeros and for the smallest numbers.
  void fill(GroupId group) {
    std::uint64_t random = group.value() + std::uint64_t{1};
    const auto next = [&random] {
      random = random * 6364136223846793005U + 1442695040888963407U;
      return static_cast<float>(static_cast<std::int64_t>(random) >> 40) * 0x1p-23F;
    };
    const Catalogue& catalogue = store_->catalogue();
    const WeightGroupRecord& record = catalogue.weight_groups()[group];
    const ElementRange all = owned(group);
    std::generate_n(store_->state(record.master_offset), all.size(), next);
    std::fill_n(store_->state(record.moment1_offset), all.size(), 0.0F);
    std::fill_n(store_->state(record.moment2_offset), all.size(), 0.0F);
    std::fill_n(reinterpret_cast<std::uint16_t*>(store_->working_copy(group, version_).data()) + all.begin, all.size(),
                0);
    for (const UseRecord& use : catalogue.uses_of_group(group)) {
      std::fill_n(store_->state(use.sum_offset), all.size(), 0.0F);
      std::generate_n(reinterpret_cast<std::uint16_t*>(store_->gradients(use.gradient_offset)) + all.begin, all.size(),
                      [&next] { return bf16_from_float(0.01F * next()); });
    }
  }

  Times step() {
    const Time begin = now();
    for (int round = 0; round < num_rounds_; ++round) add(round);
    const Time added = now();
    for (std::size_t i = 0; i < groups_.size(); ++i) updater_.sum_squares(groups_[i], squares_[i]);
    const Time summed = now();
    update();
    const Time end = now();
    const auto between = [](const Time& a, const Time& b) {
      return Time{.wall_s = b.wall_s - a.wall_s, .processor_s = b.processor_s - a.processor_s};
    };
    return {between(begin, added), between(added, summed), between(summed, end), between(begin, end)};
  }

 private:
  [[nodiscard]] ElementRange owned(GroupId group) const { return store_->catalogue().owned(group); }

  // Adds a round's gradients, those of the last layer first.
  void add(int round) {
    const Catalogue& catalogue = store_->catalogue();
    const bool is_own = nodes_of_rounds_[static_cast<std::size_t>(round)] == place_.node;
    for (int layer = catalogue.num_layers(); layer-- > 0;) {
      for (const UseId use : catalogue.uses_of(CatalogueLayer(layer))) {
        const GroupId group = catalogue.uses()[use].group;
        const std::uint64_t bytes = dtype_bytes(catalogue.weight_groups()[group].dtype);
        const ElementRange all = owned(group);
        const std::uint64_t piece = is_own ? all.size() : message_elements(bytes);
        for (std::uint64_t begin = all.begin; begin < all.end; begin += piece) {
          updater_.add_to_sum({.use = use,
                               .elements = {.begin = begin, .end = std::min(begin + piece, all.end)},
                               .data = store_->gradient(use).data() + begin * bytes},
                              round == 0);
        }
      }
    }
  }

  void update() {
    version_ = version_ + 1;
    const UpdateStep rule = update_step_of(AdamW{}, static_cast<std::int64_t>(version_.value()));
    for (const GroupId group : groups_) {
      const UpdateSpan whole{.begin = 0, .end = store_->catalogue().weight_groups()[group].num_elements, .step = rule};
      updater_.update(group, version_, {&whole, 1});
    }
  }

  const NodePlace place_;
  const int num_rounds_;
  const std::unique_ptr<Store> store_;
  const std::vector<GroupId> groups_;
  MemoryGroupUpdater updater_;
  const std::vector<int> nodes_of_rounds_;
  std::vector<std::vector<double>> squares_{};  // by group
  Version version_{0};
};

// Returns the node with the largest part.
NodePlace node_with_most(const PipelineRequest& model, int num_nodes) {
  NodePlace busiest{.node = 0, .num_nodes = num_nodes};
  std::uint64_t bytes = 0;
  for (int node = 0; node < num_nodes; ++node) {
    const std::uint64_t owned = Catalogue::lay_out({model}, {node, num_nodes}).state_bytes();
    if (owned > bytes) busiest.node = node;
    bytes = std::max(bytes, owned);
  }
  return busiest;
}

void report_memory(const Setting& setting, const std::vector<NodePlace>& places) {
  std::printf("%5s  %13s  %22s  %10s  %6s\n", "nodes", "parameters", "masters, moments (MiB)", "sums (MiB)", "n-fold");
  const double all = static_cast<double>(Catalogue::lay_out({setting.model}).state_bytes());
  for (const NodePlace& place : places) {
    const Catalogue catalogue = Catalogue::lay_out({setting.model}, place);
    std::uint64_t owned = 0;
    for (const GroupId group : catalogue.trained_groups(0)) owned += catalogue.owned(group).size();
    const double sums = 4.0 * static_cast<double>(owned);
    const auto state = static_cast<double>(catalogue.state_bytes());
    std::printf("%5d  %13llu  %22.1f  %10.1f  %6.3f\n", place.num_nodes, static_cast<unsigned long long>(owned),
                (state - sums) / 0x1p20, sums / 0x1p20, place.num_nodes * state / all);
  }
}

void report_times(int pass, const std::vector<NodePlace>& places, const std::vector<std::vector<Times>>& turns) {
  std::printf("%s\n%5s  %9s  %6s  %18s  %6s\n", kPasses[static_cast<std::size_t>(pass)], "nodes", "time (ms)", "n-fold",
              "of processors (ms)", "n-fold");
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::vector<double> wall_s, processor_s, wall, processor;
    for (const std::vector<Times>& turn : turns) {
      const Time& one = turn[0][static_cast<std::size_t>(pass)];
      const Time& time = turn[i][static_cast<std::size_t>(pass)];
      wall_s.push_back(time.wall_s);
      processor_s.push_back(time.processor_s);
      wall.push_back(places[i].num_nodes * time.wall_s / one.wall_s);
      processor.push_back(places[i].num_nodes * time.processor_s / one.processor_s);
    }
    std::printf("%5d  %9.1f  %6.2f  %18.1f  %6.2f\n", places[i].num_nodes, 1e3 * median(wall_s), median(wall),
                1e3 * median(processor_s), median(processor));
  }
}

void measure(const Setting& setting) {
  std::vector<NodePlace> places;
  for (const int num_nodes : setting.nodes) places.push_back(node_with_most(setting.model, num_nodes));
  report_memory(setting, places);
  std::fflush(stdout);
  std::vector<std::unique_ptr<Node>> nodes;
  for (const NodePlace& place : places) nodes.push_back(std::make_unique<Node>(setting, place));
  // All nodes take their memory at the same time. If they did so one after the other, their pages would be of different
  // kinds: a virtual machine has some in huge pages of its host, and others not.
  for (const GroupId group : nodes.front()->groups()) {
    for (const auto& node : nodes) node->fill(group);
  }
  for (const auto& node : nodes) (void)node->step();
  std::vector<std::vector<Times>> turns(static_cast<std::size_t>(setting.num_turns));
  for (std::vector<Times>& turn : turns) {
    for (const auto& node : nodes) turn.push_back(node->step());
  }
  for (int pass = 0; pass < static_cast<int>(kPasses.size()); ++pass) report_times(pass, places, turns);
}

int run(int argc, char** argv) {
  cxxopts::Options options("nodes_optimizer", "The optimizer's memory and time of a node, by number of nodes");
  options.add_options()("model", "shapes of layers", cxxopts::value<std::string>()->default_value("qwen3-0.6b"))(
      "layers", "decoder layers", cxxopts::value<int>()->default_value("10"))(
      "rounds-per-step", "of all nodes", cxxopts::value<int>()->default_value("4"))(
      "threads", "of the optimizer", cxxopts::value<int>()->default_value(cat(usable_cores())))(
      "nodes", "numbers of nodes", cxxopts::value<std::vector<int>>()->default_value("1,2,4"))(
      "turns", "of each number of nodes", cxxopts::value<int>()->default_value("15"));
  const auto words = options.parse(argc, argv);
  const Setting setting{.model = request_of(words["model"].as<std::string>(), words["layers"].as<int>()),
                        .num_rounds = words["rounds-per-step"].as<int>(),
                        .num_threads = words["threads"].as<int>(),
                        .num_turns = words["turns"].as<int>(),
                        .nodes = words["nodes"].as<std::vector<int>>()};
  if (setting.nodes.front() != 1 || std::ranges::min(setting.nodes) < 1 ||
      std::ranges::max(setting.nodes) > setting.num_rounds)
    throw Error(ExitCode::kUsage, "--nodes must begin with 1 and have no more nodes than --rounds-per-step");
  if (setting.num_threads < 1 || setting.num_turns < 1)
    throw Error(ExitCode::kUsage, "--threads and --turns must be at least 1");
  std::printf("%zu layers of %s, %d rounds per step, %d threads, %d turns\n", setting.model.layers.size(),
              setting.model.name.c_str(), setting.num_rounds, setting.num_threads, setting.num_turns);
  measure(setting);
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  return rp::run_program("nodes_optimizer", [&] { return rp::run(argc, argv); });
}
