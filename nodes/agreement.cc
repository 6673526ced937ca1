#include "nodes/agreement.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "nodes/node_tree.h"

namespace rp {

namespace {

constexpr NodeMessageTag kDecisionTag{.kind = NodeMessageKind::kDecision, .number = 0};
constexpr NodeMessageTag kLongTextTag{.kind = NodeMessageKind::kDecision, .number = 1};
constexpr NodeMessageTag kSignalTag{.kind = NodeMessageKind::kDecision, .number = 2};

// In place of a length: this is the last message, and no decision follows.
constexpr std::uint32_t kEnd = UINT32_MAX;

// A decision. A text that is too long for it follows in a message of its own.
struct Decision {
  std::uint32_t length = 0;
  std::array<char, 60> text{};
  [[nodiscard]] bool is_end() const { return length == kEnd; }
  [[nodiscard]] bool is_long() const { return length > text.size() && !is_end(); }
};

}  // namespace

class NodeAgreement::Shared : public std::enable_shared_from_this<Shared> {
 public:
  explicit Shared(NodeNetwork& network) : network_(network), place_(network.place()), children_(children_of(place_)) {}

  void begin() {
    network_.add_failure_handler([self = shared_from_this()](std::exception_ptr error) {
      MutexLock lock(self->mutex_);
      self->error_ = std::move(error);
      self->changed_.notify_all();
    });
    signals_.resize(children_.size());
    for (std::size_t i = 0; i < children_.size(); ++i) {
      const std::span<int> memory(&signals_[i], 1);
      network_.receive(children_[i], kSignalTag, std::as_writable_bytes(memory), [self = shared_from_this(), i] {
        if (self->signals_[i] != 0) self->pass_on(self->signals_[i]);
      });
    }
    if (place_.node > 0) receive();
  }

  // Sends a decision to the children.
  void send(const Decision& decision, const std::string& long_text) const {
    const auto sent = std::make_shared<std::pair<Decision, std::string>>(decision, long_text);
    for (const int child : children_) {
      network_.send(child, kDecisionTag, std::as_bytes(std::span(&sent->first, 1)), [sent] {});
      if (decision.is_long()) network_.send(child, kLongTextTag, std::as_bytes(std::span(sent->second)), [sent] {});
    }
  }

  // Returns the next decision of the first node.
  std::string take() {
    MutexLock lock(mutex_);
    while (texts_.empty() && !error_) changed_.wait(mutex_);
    if (error_) std::rethrow_exception(error_);
    std::string text = std::move(texts_.front());
    texts_.pop_front();
    return text;
  }

  // Sends a signal towards the first node, or 0 if none will follow. The first call counts.
  void pass_on(int signal) {
    if (place_.node == 0) {
      int none = 0;
      signal_.compare_exchange_strong(none, signal);
      return;
    }
    if (has_passed_on_.exchange(true)) return;
    const auto message = std::make_shared<int>(signal);
    network_.send(parent_of(place_.node), kSignalTag, std::as_bytes(std::span(message.get(), 1)), [message] {});
  }
  [[nodiscard]] int signal() const { return signal_.load(); }

 private:
  void receive() {
    network_.receive(parent_of(place_.node), kDecisionTag, std::as_writable_bytes(std::span(&received_, 1)),
                     [self = shared_from_this()] { self->end_receive(); });
  }
  void end_receive() {
    if (received_.is_end()) {
      send(received_, "");
    } else if (received_.is_long()) {
      long_text_.resize(received_.length);
      network_.receive(parent_of(place_.node), kLongTextTag, std::as_writable_bytes(std::span(long_text_)),
                       [self = shared_from_this()] { self->end_decision(self->long_text_); });
    } else {
      end_decision(std::string(received_.text.data(), received_.length));
    }
  }
  void end_decision(const std::string& text) {
    send(received_, text);
    {
      MutexLock lock(mutex_);
      texts_.push_back(text);
      changed_.notify_all();
    }
    receive();
  }

  NodeNetwork& network_;
  const NodePlace place_;
  const std::vector<int> children_;
  // Changed only while they are received.
  std::vector<int> signals_;  // of the children
  Decision received_;
  std::string long_text_;

  std::atomic<bool> has_passed_on_{false};
  std::atomic<int> signal_{0};  // at the first node: that another node has passed on
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> texts_ RP_GUARDED_BY(mutex_);  // decisions for which the program has not asked yet
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
};

NodeAgreement::NodeAgreement(NodeNetwork& network)
    : shared_(std::make_shared<Shared>(network)), place_(network.place()), num_calls_(place_.num_nodes) {
  shared_->begin();
}

std::string NodeAgreement::from_first(const std::string& own) {
  if (place_.node > 0) return shared_->take();
  Decision decision{.length = static_cast<std::uint32_t>(own.size())};
  if (!decision.is_long()) std::ranges::copy(own, decision.text.begin());
  shared_->send(decision, own);
  return own;
}

int NodeAgreement::stop_signal(int own, bool may_end) {
  if (place_.node > 0 && own != 0) shared_->pass_on(own);
  const bool decides = may_end && num_calls_ >= place_.num_nodes;
  num_calls_ = decides ? 1 : num_calls_ + 1;
  if (!decides) return 0;
  const int signal = own != 0 ? own : shared_->signal();
  const std::string agreed = from_first(std::string(1, static_cast<char>(signal)));
  return agreed.empty() ? 0 : agreed[0];
}

void NodeAgreement::finish() {
  if (place_.node == 0) {
    shared_->send({.length = kEnd}, "");
  } else {
    shared_->pass_on(0);
  }
}

}  // namespace rp
