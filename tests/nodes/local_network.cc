#include "tests/nodes/local_network.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace rp::test {

// The end of one node, with the thread that calls its functions.
class LocalNetwork::Node : public NodeNetwork {
 public:
  Node(LocalNetwork& network, NodePlace place) : network_(network), place_(place), thread_([this] { run(); }) {}
  // Calls no function any more.
  void end() {
    {
      MutexLock lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  [[nodiscard]] NodePlace place() const override { return place_; }
  void send(int to, NodeMessageTag tag, std::span<const std::byte> memory, Done done) override {
    network_.begin_send({.from = place_.node, .to = to, .tag = tag}, memory, std::move(done));
  }
  void receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) override {
    network_.begin_receive({.from = from, .to = place_.node, .tag = tag}, memory, std::move(done));
  }
  void finish() override {}
  void stop() override {
    MutexLock lock(mutex_);
    is_stopped_ = true;
    while (is_calling_) changed_.wait(mutex_);
  }

  // Copies a message into the memory of this node, unless the node has stopped.
  void take(std::span<const std::byte> from, const Receive& receive) {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    RP_ASSERT(from.size() == receive.memory.size());
    std::ranges::copy(from, receive.memory.begin());
    calls_.push_back(receive.done);
    changed_.notify_all();
  }
  void call(const Done& done) {
    MutexLock lock(mutex_);
    calls_.push_back(done);
    changed_.notify_all();
  }

 private:
  void run() {
    MutexLock lock(mutex_);
    while (!ends_) {
      if (calls_.empty() || is_stopped_) {
        changed_.wait(mutex_);
        continue;
      }
      const Done done = std::move(calls_.front());
      calls_.pop_front();
      is_calling_ = true;
      mutex_.unlock();
      done();
      mutex_.lock();
      is_calling_ = false;
      changed_.notify_all();
    }
  }

  LocalNetwork& network_;
  const NodePlace place_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Done> calls_ RP_GUARDED_BY(mutex_);
  bool is_calling_ RP_GUARDED_BY(mutex_) = false;
  bool is_stopped_ RP_GUARDED_BY(mutex_) = false;
  bool ends_ RP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

LocalNetwork::LocalNetwork(int num_nodes, const LocalNetworkSettings& settings)
    : settings_(settings), sent_(static_cast<std::size_t>(num_nodes)) {
  for (int node = 0; node < num_nodes; ++node) {
    nodes_.push_back(std::make_unique<Node>(*this, NodePlace{.node = node, .num_nodes = num_nodes}));
  }
  wire_ = std::thread([this] { deliver(); });
}

LocalNetwork::~LocalNetwork() {
  {
    MutexLock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }
  wire_.join();
  for (const std::unique_ptr<Node>& node : nodes_) node->end();  // their functions use the network
}

NodeNetwork& LocalNetwork::node(int node) { return *nodes_[static_cast<std::size_t>(node)]; }

MessageCount LocalNetwork::sent(int node) {
  MutexLock lock(mutex_);
  return sent_[static_cast<std::size_t>(node)];
}

void LocalNetwork::begin_send(const Channel& channel, std::span<const std::byte> memory, NodeNetwork::Done done) {
  MutexLock lock(mutex_);
  add(sent_[static_cast<std::size_t>(channel.from)], {.messages = 1, .bytes = memory.size()});
  Send send{.memory = memory, .copy = nullptr, .done = std::move(done)};
  if (memory.size() <= settings_.eager_bytes) {
    send.copy = std::make_shared<std::vector<std::byte>>(memory.begin(), memory.end());
    send.memory = *send.copy;
    nodes_[static_cast<std::size_t>(channel.from)]->call(std::exchange(send.done, nullptr));
  }
  sends_[channel].push_back(std::move(send));
  match(channel);
}

void LocalNetwork::begin_receive(const Channel& channel, std::span<std::byte> memory, NodeNetwork::Done done) {
  MutexLock lock(mutex_);
  receives_[channel].push_back({.memory = memory, .done = std::move(done)});
  match(channel);
}

void LocalNetwork::match(const Channel& channel) {
  std::deque<Send>& sends = sends_[channel];
  std::deque<Receive>& receives = receives_[channel];
  if (sends.empty() || receives.empty()) return;
  matches_.push_back({.channel = channel, .send = std::move(sends.front()), .receive = std::move(receives.front())});
  sends.pop_front();
  receives.pop_front();
  changed_.notify_all();
}

// Messages that match are delivered in any order, as the transfers of large messages end in any order.
void LocalNetwork::deliver() {
  std::mt19937 random(settings_.seed);
  MutexLock lock(mutex_);
  while (!has_ended_) {
    if (matches_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    const auto chosen = matches_.begin() + static_cast<std::ptrdiff_t>(random() % matches_.size());
    const Match match = std::move(*chosen);
    matches_.erase(chosen);
    mutex_.unlock();
    if (random() % 4 == 0) usleep(static_cast<unsigned>(random() % 200));
    nodes_[static_cast<std::size_t>(match.channel.to)]->take(match.send.memory, match.receive);
    if (match.send.done) nodes_[static_cast<std::size_t>(match.channel.from)]->call(match.send.done);
    mutex_.lock();
  }
}

}  // namespace rp::test
