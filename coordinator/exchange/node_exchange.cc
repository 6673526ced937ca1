#include "coordinator/exchange/node_exchange.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/check.h"

namespace rp {

NodeExchange::NodeExchange(Store& store, std::uint32_t pipeline, NodeNetwork& network, std::function<void()> wake)
    : store_(store), pipeline_(pipeline), network_(network), wake_(std::move(wake)) {
  const Catalogue& catalogue = store.catalogue();
  const PipelineRecord& record = catalogue.pipelines()[pipeline];
  for (int layer = static_cast<int>(record.num_layers); layer-- > 0;) {
    for (const UseId use : catalogue.uses_of(record.catalogue_layer(layer))) {
      const GroupId group = group_of(use);
      if (record_of(group).is_trained == 0 || catalogue.owned(group).is_empty()) continue;
      order_of_uses_.push_back(use);
    }
  }
  const std::uint64_t buffer_bytes = catalogue.longest_piece_bytes(pipeline);
  sources_.resize(static_cast<std::size_t>(network.place().num_nodes));
  queues_.resize(sources_.size());
  for (const int node : other_nodes()) {
    queues_[static_cast<std::size_t>(node)] = std::make_unique<SendQueue>(network, node);
    for (int i = 0; !catalogue.workers_exchange() && i < buffers_per_node(network.place().num_nodes); ++i) {
      buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes));
      sources_[static_cast<std::size_t>(node)].free_buffers.push_back(buffers_.back().get());
    }
  }
}

// Every node begins with the one after it, so that not all of them send to the first one at once.
std::vector<int> NodeExchange::other_nodes() const {
  const NodePlace place = network_.place();
  std::vector<int> nodes;
  for (int i = 1; i < place.num_nodes; ++i) nodes.push_back((place.node + i) % place.num_nodes);
  return nodes;
}

void NodeExchange::note(const ExchangeEvent& event) {
  MutexLock lock(mutex_);
  events_.push_back(event);
}

void NodeExchange::note_and_wake(const ExchangeEvent& event) {
  note(event);
  wake_();
}

std::vector<ExchangeEvent> NodeExchange::take_events() {
  MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

NodeNetwork::Done NodeExchange::after(std::size_t num_calls, const ExchangeEvent& event) {
  auto left = std::make_shared<std::atomic<std::size_t>>(num_calls);
  return [this, left, event] {
    if (left->fetch_sub(1) == 1) note_and_wake(event);
  };
}

template <typename Byte>
void NodeExchange::append(std::vector<Message<Byte>>& messages, int node, GroupId group, std::span<Byte> whole,
                          int owner) const {
  const std::uint64_t bytes = dtype_bytes(record_of(group).dtype);
  const std::uint64_t longest = message_elements(bytes);
  const ElementRange owned = store_.catalogue().owned_by(owner, group);
  for (std::uint64_t begin = owned.begin; begin < owned.end; begin += longest) {
    const std::uint64_t elements = std::min(longest, owned.end - begin);
    messages.push_back({.node = node, .memory = whole.subspan(begin * bytes, elements * bytes)});
  }
}

template <typename Send>
void NodeExchange::send(NodeMessageTag tag, const std::vector<Message<const std::byte>>& messages,
                        const ExchangeEvent& event, const Send& send) {
  if (messages.empty()) return note(event);
  const NodeNetwork::Done done = after(messages.size(), event);
  for (const auto& message : messages)
    send(*queues_[static_cast<std::size_t>(message.node)], LongMessage{tag, message.memory, done});
}

void NodeExchange::receive(NodeMessageTag tag, const std::vector<Message<std::byte>>& messages,
                           const ExchangeEvent& event) {
  if (messages.empty()) return note(event);
  const NodeNetwork::Done done = after(messages.size(), event);
  for (const auto& message : messages) network_.receive(message.node, tag, message.memory, done);
}

// Gradients

void NodeExchange::expect_gradients(int node, Version version, std::uint64_t round) {
  if (order_of_uses_.empty()) return;
  sources_[static_cast<std::size_t>(node)].rounds.push_back({.version = version, .round = round});
  receive_gradients(node);
}

void NodeExchange::give_back(const ReceivedGradient& gradient) {
  sources_[static_cast<std::size_t>(gradient.node)].free_buffers.push_back(gradient.data);
  receive_gradients(gradient.node);
}

void NodeExchange::receive_gradients(int node) {
  Source& source = sources_[static_cast<std::size_t>(node)];
  while (!source.rounds.empty() && !source.free_buffers.empty()) {
    const UseId use = order_of_uses_[source.next_use];
    const WeightGroupRecord& group = record_of(group_of(use));
    const ElementRange owned = store_.catalogue().owned(group_of(use));
    const std::uint64_t begin = owned.begin + source.next_element;
    const std::uint64_t longest = message_elements(dtype_bytes(group.dtype));
    const ElementRange elements{.begin = begin, .end = std::min(begin + longest, owned.end)};
    const ReceivedGradient gradient{.version = source.rounds.front().version,
                                    .round = source.rounds.front().round,
                                    .use = use,
                                    .elements = elements,
                                    .data = source.free_buffers.back(),
                                    .node = node};
    source.free_buffers.pop_back();
    source.next_element += elements.size();
    if (elements.end == owned.end) {
      source.next_element = 0;
      if (++source.next_use == order_of_uses_.size()) {
        source.next_use = 0;
        source.rounds.pop_front();
      }
    }
    network_.receive(node, {NodeMessageKind::kGradient, use.value()},
                     {gradient.data, elements.size() * dtype_bytes(group.dtype)},
                     [this, gradient] { note_and_wake(gradient); });
  }
}

void NodeExchange::send_gradient(UseId use) {
  std::vector<Message<const std::byte>> messages;
  for (const int node : other_nodes()) append(messages, node, group_of(use), store_.gradient(use), node);
  send({NodeMessageKind::kGradient, use.value()}, messages, SentGradient{.use = use},
       [](SendQueue& queue, LongMessage message) { queue.send_gradient(std::move(message)); });
}

// Weights

void NodeExchange::send_weights(GroupId group, Version version) {
  const std::span<const std::byte> copy = store_.working_copy(group, version);
  std::vector<Message<const std::byte>> messages;
  for (const int node : other_nodes()) append(messages, node, group, copy, network_.place().node);
  const WeightsOrder order{.version = version, .first_use = record_of(group).first_use};
  send({NodeMessageKind::kWeights, group.value()}, messages, SentWeights{.group = group, .version = version},
       [&](SendQueue& queue, LongMessage message) { queue.send_weights(order, std::move(message)); });
}

void NodeExchange::receive_weights(GroupId group, Version version) {
  std::vector<Message<std::byte>> messages;
  for (const int node : other_nodes()) append(messages, node, group, store_.working_copy(group, version), node);
  receive({NodeMessageKind::kWeights, group.value()}, messages, ReceivedWeights{.group = group, .version = version});
}

// The event also follows the end of the sends, after which the sums may be overwritten.
void NodeExchange::exchange_squares(const std::function<std::span<double>(int node)>& of_node) {
  const NodeMessageTag tag{NodeMessageKind::kSquares, pipeline_};
  const NodeNetwork::Done done = after(2 * other_nodes().size(), ReceivedSquares{});
  for (const int node : other_nodes()) {
    network_.receive(node, tag, std::as_writable_bytes(of_node(node)), done);
    network_.send(node, tag, std::as_bytes(of_node(network_.place().node)), done);
  }
}

}  // namespace rp
