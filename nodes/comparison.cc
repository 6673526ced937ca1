#include "nodes/comparison.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>

#include "common/text.h"
#include "nodes/node_tree.h"
#include "nodes/pending_messages.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// What is known of a node and the nodes under it.
struct Subtree {
  std::string difference;  // of the first node that differs from its parent; empty if none does
  std::vector<int> workers;
  NodeDescription top;
};

std::string text_of(const Subtree& subtree) {
  std::string text = cat(subtree.difference, "\n");
  for (const int workers : subtree.workers) text += cat(workers, " ");
  text += cat("\n", subtree.top.host, "\n");
  for (const auto& [name, value] : subtree.top.same) text += cat(name, "\n", value, "\n");
  return text;
}

Subtree subtree_of(const std::string& text) {
  Subtree subtree;
  std::istringstream in(text);
  std::string line;
  std::getline(in, subtree.difference);
  std::getline(in, line);
  std::istringstream numbers(line);
  for (int workers = 0; numbers >> workers;) subtree.workers.push_back(std::max(1, workers));
  std::getline(in, subtree.top.host);
  for (std::string value; std::getline(in, line) && std::getline(in, value);)
    subtree.top.same.emplace_back(line, value);
  return subtree;
}

// Returns the first difference between a node and its parent, or an empty text.
std::string difference(int node, const NodeDescription& of_node, int parent, const NodeDescription& of_parent) {
  const auto differs = std::ranges::mismatch(of_node.same, of_parent.same);
  const bool at_end = differs.in1 == of_node.same.end();
  if (at_end && differs.in2 == of_parent.same.end()) return "";
  const auto value = [](auto at, auto end) { return at == end ? std::string("not set") : at->second; };
  return cat(at_end ? differs.in2->first : differs.in1->first, " is ", value(differs.in1, of_node.same.end()),
             " on node ", node, " (", of_node.host, "), and ", value(differs.in2, of_parent.same.end()), " on node ",
             parent, " (", of_parent.host, ")");
}

// Moves texts between a node and its parent or children. Memory is kept by the functions that the network calls, which
// may be after an error.
class TextExchange {
 public:
  explicit TextExchange(NodeNetwork& network) : network_(network) {
    network.add_failure_handler([pending = pending_](const std::exception_ptr& error) mutable { pending.fail(error); });
  }

  void send(const std::vector<int>& nodes, const std::string& text) {
    const auto sent = std::make_shared<std::pair<std::uint64_t, std::string>>(text.size(), text);
    for (const int node : nodes) {
      network_.send(node, kLengthTag, std::as_bytes(std::span(&sent->first, 1)), done(sent));
      network_.send(node, kTextTag, std::as_bytes(std::span(sent->second)), done(sent));
    }
    pending_.wait();
  }
  std::vector<std::string> receive(const std::vector<int>& nodes) {
    const auto lengths = std::make_shared<std::vector<std::uint64_t>>(nodes.size());
    const auto texts = std::make_shared<std::vector<std::string>>(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      network_.receive(nodes[i], kLengthTag, std::as_writable_bytes(std::span(&(*lengths)[i], 1)), done(lengths));
    }
    pending_.wait();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      (*texts)[i].resize((*lengths)[i]);
      network_.receive(nodes[i], kTextTag, std::as_writable_bytes(std::span((*texts)[i])), done(texts));
    }
    pending_.wait();
    return *texts;
  }

 private:
  static constexpr NodeMessageTag kLengthTag{.kind = NodeMessageKind::kComparison, .number = 0};
  static constexpr NodeMessageTag kTextTag{.kind = NodeMessageKind::kComparison, .number = 1};

  NodeNetwork::Done done(std::shared_ptr<void> memory) {
    return [memory = std::move(memory), end = pending_.add()] { end(); };
  }

  NodeNetwork& network_;
  PendingMessages pending_;
};

}  // namespace

std::vector<int> compare_nodes(NodeNetwork& network, const NodeDescription& own) {
  const int node = network.place().node;
  const std::vector<int> children = children_of(network.place());
  TextExchange exchange(network);
  Subtree all{.difference = "", .workers = {own.num_workers}, .top = own};
  const std::vector<std::string> texts = exchange.receive(children);
  for (std::size_t i = 0; i < children.size(); ++i) {
    const Subtree below = subtree_of(texts[i]);
    if (all.difference.empty()) all.difference = difference(children[i], below.top, node, own);
    if (all.difference.empty()) all.difference = below.difference;
    all.workers.insert(all.workers.end(), below.workers.begin(), below.workers.end());
  }
  if (node > 0) {
    exchange.send({parent_of(node)}, text_of(all));
    all = subtree_of(exchange.receive({parent_of(node)}).front());
  }
  all.top = {};  // nodes under this one need not know it
  exchange.send(children, text_of(all));
  if (all.difference.empty()) return all.workers;
  throw Error(ExitCode::kUserError, cat("the nodes differ: ", all.difference,
                                        "; start the same program with the same options and files on all nodes"));
}

}  // namespace rp
