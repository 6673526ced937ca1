#include "tests/nodes/local_network.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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
    RP_ASSERT(may_begin());
    network_.begin_send({.from = place_.node, .to = to, .tag = tag}, memory, std::move(done));
  }
  void receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) override {
    RP_ASSERT(may_begin());
    network_.begin_receive({.from = from, .to = place_.node, .tag = tag}, memory, std::move(done));
  }
  void finish() override {
    finishes_.store(true);
    network_.finish();
  }
  void stop() override {
    bool was_stopped = false;
    {
      MutexLock lock(mutex_);
      was_stopped = std::exchange(is_stopped_, true);
      while (is_calling_) changed_.wait(mutex_);
    }
    if (!was_stopped && !finishes_.load()) network_.note_stop();
  }

  // Returns whether it calls a function, or will.
  [[nodiscard]] bool is_busy() {
    MutexLock lock(mutex_);
    return is_calling_ || (!calls_.empty() && !is_stopped_);
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
  [[nodiscard]] bool may_begin() const { return !finishes_.load() || std::this_thread::get_id() == thread_.get_id(); }
  void run() {
    MutexLock lock(mutex_);
    while (!ends_) {
      if (calls_.empty() || is_stopped_) {
        changed_.wait(mutex_);
        continue;
      }
      Done done = std::move(calls_.front());
      calls_.pop_front();
      is_calling_ = true;
      mutex_.unlock();
      std::exchange(done, nullptr)();
      mutex_.lock();
      is_calling_ = false;
      changed_.notify_all();
      mutex_.unlock();  // the network's is taken before it
      network_.notify();
      mutex_.lock();
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
  std::atomic<bool> finishes_{false};
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
  MutexLock lock(mutex_);
  if (num_finishing_ == nodes_.size()) expect_all_matched();
}

NodeNetwork& LocalNetwork::node(int node) { return *nodes_[static_cast<std::size_t>(node)]; }

MessageCount LocalNetwork::sent(int node) {
  MutexLock lock(mutex_);
  return sent_[static_cast<std::size_t>(node)];
}

int LocalNetwork::num_finishing() {
  MutexLock lock(mutex_);
  return static_cast<int>(num_finishing_);
}

void LocalNetwork::finish() {
  MutexLock lock(mutex_);
  ++num_finishing_;
  changed_.notify_all();
  while (num_finishing_ + num_stopped_ < nodes_.size() || !is_quiet()) changed_.wait(mutex_);
}

void LocalNetwork::note_stop() {
  MutexLock lock(mutex_);
  ++num_stopped_;
  changed_.notify_all();
}

void LocalNetwork::notify() {
  MutexLock lock(mutex_);
  changed_.notify_all();
}

bool LocalNetwork::is_quiet() {
  return matches_.empty() && !is_delivering_ &&
         std::ranges::none_of(nodes_, [](const std::unique_ptr<Node>& node) { return node->is_busy(); });
}

void LocalNetwork::expect_all_matched() {
  const auto expect_none = [](const char* what, std::size_t num, const Channel& channel) {
    if (num == 0) return;
    ADD_FAILURE() << what << ": " << num << " from node " << channel.from << " to node " << channel.to << ", kind "
                  << static_cast<int>(channel.tag.kind) << ", number " << channel.tag.number;
  };
  for (const auto& [channel, sends] : sends_) expect_none("sent and not received", sends.size(), channel);
  for (const auto& [channel, receives] : receives_) expect_none("awaited and not sent", receives.size(), channel);
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
    is_delivering_ = true;
    mutex_.unlock();
    if (random() % 4 == 0) usleep(static_cast<unsigned>(random() % 200));
    nodes_[static_cast<std::size_t>(match.channel.to)]->take(match.send.memory, match.receive);
    if (match.send.done) nodes_[static_cast<std::size_t>(match.channel.from)]->call(match.send.done);
    mutex_.lock();
    is_delivering_ = false;
    changed_.notify_all();
  }
}

}  // namespace rp::test
