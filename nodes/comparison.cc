#include "nodes/comparison.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "common/text.h"
#include "nodes/pending_messages.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::string text_of(const NodeDescription& description) {
  std::string text = cat(description.host, "\n", description.num_workers, "\n");
  for (const auto& [name, value] : description.same) text += cat(name, "\n", value, "\n");
  return text;
}

NodeDescription description_of(const std::string& text) {
  std::istringstream in(text);
  NodeDescription description;
  std::string line;
  std::getline(in, description.host);
  std::getline(in, line);
  description.num_workers = std::max(1, std::atoi(line.c_str()));
  for (std::string value; std::getline(in, line) && std::getline(in, value);)
    description.same.emplace_back(line, value);
  return description;
}

std::vector<std::string> gather(NodeNetwork& network, const std::string& own) {
  const NodePlace place = network.place();
  const auto num_nodes = static_cast<std::size_t>(place.num_nodes);
  // Kept by the functions that the network calls, which may be after an error here.
  struct Texts {
    std::vector<std::uint64_t> lengths;
    std::vector<std::string> texts;
  };
  const auto all = std::make_shared<Texts>();
  all->lengths.assign(num_nodes, own.size());
  all->texts.assign(num_nodes, own);
  PendingMessages pending;
  network.add_failure_handler([pending](const std::exception_ptr& error) mutable { pending.fail(error); });
  const auto done = [&] { return [all, end = pending.add()] { end(); }; };
  const NodeMessageTag length_tag{.kind = NodeMessageKind::kComparison, .number = 0};
  const NodeMessageTag text_tag{.kind = NodeMessageKind::kComparison, .number = 1};
  const auto self = static_cast<std::size_t>(place.node);
  for (int node = 0; node < place.num_nodes; ++node) {
    if (node == place.node) continue;
    const auto other = static_cast<std::size_t>(node);
    network.receive(node, length_tag, std::as_writable_bytes(std::span(&all->lengths[other], 1)), done());
    network.send(node, length_tag, std::as_bytes(std::span(&all->lengths[self], 1)), done());
    network.send(node, text_tag, std::as_bytes(std::span(all->texts[self])), done());
  }
  pending.wait();
  for (int node = 0; node < place.num_nodes; ++node) {
    if (node == place.node) continue;
    const auto other = static_cast<std::size_t>(node);
    all->texts[other].resize(all->lengths[other]);
    network.receive(node, text_tag, std::as_writable_bytes(std::span(all->texts[other])), done());
  }
  pending.wait();
  return all->texts;
}

}  // namespace

std::vector<NodeDescription> compare_nodes(NodeNetwork& network, const NodeDescription& own) {
  std::vector<NodeDescription> nodes;
  for (const std::string& text : gather(network, text_of(own))) nodes.push_back(description_of(text));
  const NodeDescription& first = nodes.front();
  for (std::size_t node = 1; node < nodes.size(); ++node) {
    const auto differs = std::ranges::mismatch(nodes[node].same, first.same);
    if (differs.in1 == nodes[node].same.end() && differs.in2 == first.same.end()) continue;
    const auto value = [](auto at, auto end) { return at == end ? std::string("not set") : at->second; };
    const auto& name = differs.in1 == nodes[node].same.end() ? differs.in2->first : differs.in1->first;
    throw Error(ExitCode::kUserError,
                cat("the nodes differ: ", name, " is ", value(differs.in1, nodes[node].same.end()), " on node ", node,
                    " (", nodes[node].host, "), and ", value(differs.in2, first.same.end()), " on node 0 (", first.host,
                    "); start the same program with the same options and files on all nodes"));
  }
  return nodes;
}

}  // namespace rp
