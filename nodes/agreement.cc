#include "nodes/agreement.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "nodes/pending_messages.h"

namespace rp {

namespace {

constexpr NodeMessageTag kLengthTag{.kind = NodeMessageKind::kDecision, .number = 0};
constexpr NodeMessageTag kTextTag{.kind = NodeMessageKind::kDecision, .number = 1};
constexpr NodeMessageTag kSignalTag{.kind = NodeMessageKind::kDecision, .number = 2};

}  // namespace

struct NodeAgreement::Shared {
  PendingMessages pending;       // of the call that waits
  std::atomic<int> signal{0};    // at the first node: that another node has passed on
  std::vector<int> from_others;  // at the first node, by node: where such signals arrive
};

NodeAgreement::NodeAgreement(NodeNetwork& network) : network_(network), shared_(std::make_shared<Shared>()) {
  network.add_failure_handler([shared = shared_](std::exception_ptr error) { shared->pending.fail(std::move(error)); });
  const NodePlace place = network.place();
  if (place.node != 0) return;
  shared_->from_others.resize(static_cast<std::size_t>(place.num_nodes));
  for (int node = 1; node < place.num_nodes; ++node) {
    int& signal = shared_->from_others[static_cast<std::size_t>(node)];
    network.receive(node, kSignalTag, std::as_writable_bytes(std::span(&signal, 1)), [shared = shared_, &signal] {
      int none = 0;
      if (signal != 0) shared->signal.compare_exchange_strong(none, signal);
    });
  }
}

std::string NodeAgreement::from_first(const std::string& own) {
  if (network_.place().node == 0) {
    struct Text {
      std::string text;
      std::uint64_t length = 0;
    };
    const auto sent = std::make_shared<Text>(Text{.text = own, .length = own.size()});
    for (int node = 1; node < network_.place().num_nodes; ++node) {
      network_.send(node, kLengthTag, std::as_bytes(std::span(&sent->length, 1)), [sent] {});
      network_.send(node, kTextTag, std::as_bytes(std::span(sent->text)), [sent] {});
    }
    return own;
  }
  const auto length = std::make_shared<std::uint64_t>();
  const auto receive = [this](NodeMessageTag tag, std::span<std::byte> memory, std::shared_ptr<void> owner) {
    network_.receive(0, tag, memory, [owner = std::move(owner), done = shared_->pending.add()] { done(); });
    shared_->pending.wait();
  };
  receive(kLengthTag, std::as_writable_bytes(std::span(length.get(), 1)), length);
  const auto text = std::make_shared<std::string>(*length, '\0');
  receive(kTextTag, std::as_writable_bytes(std::span(*text)), text);
  return *text;
}

int NodeAgreement::stop_signal(int own) {
  if (network_.place().node != 0 && own != 0) pass_on(own);
  const int passed_on = shared_->signal.load();
  const std::string agreed = from_first(std::string(1, static_cast<char>(own != 0 ? own : passed_on)));
  return agreed.empty() ? 0 : agreed[0];
}

void NodeAgreement::pass_on(int signal) {
  if (std::exchange(has_passed_on_, true)) return;
  const auto message = std::make_shared<int>(signal);
  network_.send(0, kSignalTag, std::as_bytes(std::span(message.get(), 1)), [message] {});
}

// The first node waits for one message of each other node.
void NodeAgreement::finish() {
  if (network_.place().node != 0) pass_on(0);
}

}  // namespace rp
