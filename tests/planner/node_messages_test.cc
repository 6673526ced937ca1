// Counts the messages of a node, and compares them with the table of docs/design/several-nodes.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "common/nodes.h"
#include "common/text.h"
#include "hoststore/round_table.h"
#include "model_files/layer_costs.h"
#include "model_files/profile_file.h"
#include "nodes/agreement.h"
#include "nodes/comparison.h"
#include "tests/common/documented_options.h"
#include "tests/nodes/echo_network.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kElementBytes = 2;

// The messages that a node sends in a step of as many rounds as there are nodes, and before the
// first one.
struct NodeMessages {
  MessageCount start;      // of the first node
  MessageCount decisions;  // the same
  MessageCount losses;
  MessageCount squares;
  MessageCount gradients;
  MessageCount weights;
  std::uint64_t buffer_bytes = 0;  // for gradients of other nodes
};

// Runs the start and the decisions of all nodes.
void count_calls(NodeMessages& result, int num_nodes) {
  NodeDescription own{.host = "node-0", .num_workers = 8};
  own.same = {{"the program's build", "18446744073709551615"},
              {"the fingerprint of layers, losses and dtypes", "18446744073709551615"},
              {"--device", "cuda"},
              {"--threads-per-worker", "8"},
              {"--allow-nondeterminism", "off"},
              {"--fp16-accumulation", "off"},
              {"num_microbatches of pipeline 0", "32"},
              {"rounds_per_step of pipeline 0", cat(num_nodes)},
              {"asynchronous of pipeline 0", "false"},
              {"seed of pipeline 0", "1"},
              {"num_moments of pipeline 0", "2"}};
  {
    LocalNetwork network(num_nodes, {});
    std::vector<std::thread> nodes;
    for (int node = 0; node < num_nodes; ++node) {
      nodes.emplace_back([&, node] {
        EXPECT_EQ(compare_nodes(network.node(node), own), std::vector<int>(static_cast<std::size_t>(num_nodes), 8));
        network.node(node).finish();
      });
    }
    for (std::thread& node : nodes) node.join();
    result.start = network.sent(0);
    for (int node = 1; node < num_nodes; ++node) EXPECT_LE(network.sent(node).messages, result.start.messages + 2);
  }
  EchoNetwork network({.node = 0, .num_nodes = num_nodes});
  NodeAgreement agreement(network);
  for (int round = 0; round < num_nodes; ++round) EXPECT_EQ(agreement.stop_signal(0), 0);
  result.decisions = network.sent(NodeMessageKind::kDecision);
}

// `groups`: the elements of the trained weight groups.
NodeMessages messages_of(const std::vector<std::uint64_t>& groups, int num_nodes) {
  NodeMessages result;
  count_calls(result, num_nodes);
  const int others = num_nodes - 1;
  add(result.losses, {.messages = 1, .bytes = sizeof(LossRecord)}, others);
  std::uint64_t own_chunks = 0, longest_piece = 0;
  for (std::uint64_t group = 0; group < groups.size(); ++group) {
    for (int node = 0; node < num_nodes; ++node) {
      const std::uint64_t owned = owned_elements(groups[group], group, {.node = node, .num_nodes = num_nodes}).size();
      if (node > 0) {
        add(result.gradients, pieces_of(owned, kElementBytes));
        continue;
      }
      add(result.weights, pieces_of(owned, kElementBytes), others);
      own_chunks += num_chunks(owned);
      longest_piece = std::max(longest_piece, longest_piece_bytes(owned, kElementBytes));
    }
  }
  add(result.squares, {.messages = 1, .bytes = (1 + own_chunks) * sizeof(double)}, others);  // with a hash
  result.buffer_bytes = receive_buffers_bytes(longest_piece, num_nodes);
  return result;
}

std::vector<std::uint64_t> groups_of(const std::string& preset) {
  std::vector<std::uint64_t> groups;
  for (const LayerCost& cost : layer_costs(preset_config(preset), {.sequences = 1, .sequence_length = 128})) {
    EXPECT_EQ(cost.trained_elements, cost.gradient_elements)
        << "no tied parameters, which would be groups of their own";
    groups.push_back(cost.trained_elements);
  }
  return groups;
}

std::string cell(const MessageCount& count) { return cat(count.messages, ", ", bytes_text(count.bytes)); }

TEST(NodeMessages, AreThoseOfTheDocumentation) {
  const std::vector<std::uint64_t> groups = groups_of("qwen3-8b");
  std::vector<std::string> rows;
  for (const int num_nodes : {2, 4, 16, 64, 256, 1000}) {
    const NodeMessages m = messages_of(groups, num_nodes);
    rows.push_back(cat("| n = ", num_nodes, " | ", cell(m.start), " | ", cell(m.decisions), " | ", cell(m.losses),
                       " | ", cell(m.squares), " | ", cell(m.gradients), " | ", cell(m.weights), " | ",
                       bytes_text(m.buffer_bytes), " |"));
  }
  expect_documented("design/several-nodes.md", rows, "| n = ");
}

TEST(NodeMessages, HaveTheBytesOfTheFormula) {
  const std::vector<std::uint64_t> groups = groups_of("qwen3-8b");
  double parameters = 0;
  for (const std::uint64_t elements : groups) parameters += static_cast<double>(elements);
  for (const int num_nodes : {2, 4, 16, 64}) {
    const NodeMessages m = messages_of(groups, num_nodes);
    const double bytes = 2 * parameters * (num_nodes - 1) / num_nodes;
    EXPECT_NEAR(static_cast<double>(m.gradients.bytes), bytes, 0.01 * bytes);
    EXPECT_NEAR(static_cast<double>(m.weights.bytes), bytes, 0.01 * bytes);
    const auto levels = static_cast<std::uint64_t>(std::lround(std::log2(num_nodes)));
    EXPECT_EQ(m.start.messages, 2 * levels);
    EXPECT_EQ(m.decisions.messages, levels);
  }
}

}  // namespace
}  // namespace rp::test
