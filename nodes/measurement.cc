#include "nodes/measurement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "common/nodes.h"
#include "common/system/clock.h"

namespace rp {

namespace {

// What a message is about. The number of its tag.
enum class Part : std::uint8_t { kClock, kPing, kCount, kData, kRate, kResult };

NodeMessageTag tag_of(Part part) {
  return {.kind = NodeMessageKind::kProbe, .number = static_cast<std::uint32_t>(part)};
}

constexpr int kFirstPings = 10;  // are not counted, since the connection is only made then
constexpr std::size_t kMinPings = 10;
constexpr std::size_t kMaxPings = 200;
constexpr int kFirstMessages = 4;  // of the data, from which the number of the others follows
constexpr int kMinMessages = 8;

// To each node, of which the one that was answered soonest counts. Fewer if there are many nodes, because the first one
// asks them one after the other.
int num_clock_questions(int num_nodes) { return std::clamp(1000 / num_nodes, 2, 10); }

double seconds_since(std::int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) / 1e9; }

// What the functions that the network calls report to the thread that waits.
struct Events {
  Mutex mutex;
  CondVar changed;
  std::exception_ptr error RP_GUARDED_BY(mutex);
};

// Messages that a thread waits for. Shared with the functions that the network calls.
class Awaited {
 public:
  Awaited(std::shared_ptr<Events> events, int num) : events_(std::move(events)), num_left_(num) {}

  void count_one() {
    MutexLock lock(events_->mutex);
    --num_left_;
    events_->changed.notify_all();
  }

  // Returns false if the deadline passes before all are complete.
  [[nodiscard]] bool wait(const Deadline& deadline) {
    MutexLock lock(events_->mutex);
    while (num_left_ > 0 && !events_->error && !deadline.passed())
      events_->changed.wait_for_ns(events_->mutex, std::min(deadline.left_ns(), kNsPerSecond));
    if (events_->error) std::rethrow_exception(events_->error);
    return num_left_ == 0;
  }

 private:
  const std::shared_ptr<Events> events_;
  int num_left_;  // guarded by the mutex of `events_`
};

// The messages of data in one direction, several of which are on their way at a time. The functions that the network
// calls keep it alive.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(NodeNetwork& network, int other, bool sends, int num_messages, std::shared_ptr<Awaited> end)
      : network_(network),
        other_(other),
        sends_(sends),
        end_(std::move(end)),
        memory_(kMessagesOnWay),
        num_to_begin_(num_messages) {
    for (std::vector<std::byte>& each : memory_) each.resize(kMessageBytes);
  }

  void start() {
    for (std::size_t slot = 0; slot < memory_.size(); ++slot) begin(slot);
  }

 private:
  void begin(std::size_t slot) {
    if (num_to_begin_.fetch_sub(1) <= 0) return;
    const auto done = [self = shared_from_this(), slot] {
      self->begin(slot);
      self->end_->count_one();
    };
    if (sends_) {
      network_.send(other_, tag_of(Part::kData), memory_[slot], done);
    } else {
      network_.receive(other_, tag_of(Part::kData), memory_[slot], done);
    }
  }

  NodeNetwork& network_;
  const int other_;
  const bool sends_;
  const std::shared_ptr<Awaited> end_;
  std::vector<std::vector<std::byte>> memory_;
  std::atomic<int> num_to_begin_;
};

// Sends and receives messages for one thread. The network keeps the memory of those that do not arrive in time.
class Messenger {
 public:
  explicit Messenger(NodeNetwork& network) : network_(network) {
    network_.add_failure_handler([events = events_](const std::exception_ptr& error) {
      MutexLock lock(events->mutex);
      events->error = error;
      events->changed.notify_all();
    });
  }

  template <typename T>
  void send(int to, Part part, const T& value) {
    const auto memory = std::make_shared<T>(value);
    network_.send(to, tag_of(part), std::as_bytes(std::span(memory.get(), 1)), [memory] {});
  }

  // Returns nothing if the deadline passes.
  template <typename T>
  [[nodiscard]] std::optional<T> receive(int from, Part part, const Deadline& deadline) {
    const auto memory = std::make_shared<T>();
    const auto awaited = std::make_shared<Awaited>(events_, 1);
    network_.receive(from, tag_of(part), std::as_writable_bytes(std::span(memory.get(), 1)),
                     [memory, awaited] { awaited->count_one(); });
    if (!awaited->wait(deadline)) return std::nullopt;
    return *memory;
  }

  // Sends so many messages of data to a node while it receives as many from it. Returns the seconds until all had
  // arrived here; nothing if the deadline passes.
  [[nodiscard]] std::optional<double> exchange(int other, int num_messages, const Deadline& deadline) {
    const auto received = std::make_shared<Awaited>(events_, num_messages);
    const auto sent = std::make_shared<Awaited>(events_, num_messages);
    const auto input = std::make_shared<Stream>(network_, other, false, num_messages, received);
    const auto output = std::make_shared<Stream>(network_, other, true, num_messages, sent);
    const std::int64_t begin_ns = now_ns();
    input->start();
    output->start();
    if (!received->wait(deadline)) return std::nullopt;
    const double seconds = seconds_since(begin_ns);
    if (!sent->wait(deadline)) return std::nullopt;
    return seconds;
  }

 private:
  NodeNetwork& network_;
  const std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

double gbs(int num_messages, double seconds) {
  return static_cast<double>(num_messages) * static_cast<double>(kMessageBytes) / seconds / 1e9;
}

std::int64_t time_of_day_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// One node's part of the measurement.
class Measuring {
 public:
  Measuring(NodeNetwork& network, const MeasurementSettings& settings)
      : settings_(settings), place_(network.place()), messenger_(network) {
    if (!settings_.clock) settings_.clock = time_of_day_ns;
  }

  std::optional<NodesMeasurement> run() {
    NodesMeasurement result;
    if (is_first()) {
      result.clocks.resize(static_cast<std::size_t>(place_.num_nodes));
      result.clocks[0] = ClockDifference{};
      for (int node = 1; node < place_.num_nodes; ++node) result.clocks[static_cast<std::size_t>(node)] = ask(node);
    } else {
      answer();
    }
    measure_neighbours();
    if (!is_first()) return std::nullopt;
    const auto turns = turns_of_neighbours(place_.num_nodes);
    for (int node = 0; node < place_.num_nodes && !turns.empty(); ++node) {
      const int next = (node + 1) % place_.num_nodes;
      if (node > next && place_.num_nodes == 2) break;
      result.links.push_back({.first = node, .second = next, .speed = speed_of(node)});
    }
    return result;
  }

 private:
  struct Question {
    std::int32_t is_last = 0;
  };
  struct Result {
    LinkSpeed speed;
    std::int32_t is_measured = 0;
  };

  [[nodiscard]] bool is_first() const { return place_.node == 0; }

  // The end of the clocks' part, and then of each turn. All nodes have the same, except for the time between their
  // starts.
  [[nodiscard]] Deadline end_of_part(int part) const {
    return start_.later_by_ns(static_cast<std::int64_t>((part + 1) * settings_.limit_seconds * 1e9));
  }

  // As NTP does: the other node's time is compared with the middle between question and answer.
  [[nodiscard]] std::optional<ClockDifference> ask(int node) {
    // A node that does not answer leaves time for the others.
    const Deadline end = Deadline::after_ns(
        std::min(end_of_part(0).left_ns(), static_cast<std::int64_t>(settings_.limit_seconds / 2 * 1e9)));
    std::optional<ClockDifference> best;
    for (int i = 0; i < num_clock_questions(place_.num_nodes); ++i) {
      const std::int64_t asked = settings_.clock();
      messenger_.send(node, Part::kClock, std::int64_t{i});
      const auto theirs = messenger_.receive<std::int64_t>(node, Part::kClock, end);
      if (!theirs) return std::nullopt;
      const std::int64_t answered = settings_.clock();
      const ClockDifference difference{
          .seconds = (static_cast<double>(*theirs - asked) + static_cast<double>(*theirs - answered)) / 2e9,
          .uncertainty_seconds = static_cast<double>(answered - asked) / 2e9};
      if (!best || difference.uncertainty_seconds < best->uncertainty_seconds) best = difference;
    }
    return best;
  }

  void answer() {
    for (int i = 0; i < num_clock_questions(place_.num_nodes); ++i) {
      if (!messenger_.receive<std::int64_t>(0, Part::kClock, end_of_part(0))) return;
      messenger_.send(0, Part::kClock, settings_.clock());
    }
  }

  void measure_neighbours() {
    const auto turns = turns_of_neighbours(place_.num_nodes);
    num_parts_ = 1 + static_cast<int>(turns.size());
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      const Deadline end = end_of_part(1 + static_cast<int>(turn));
      for (const auto& [first, second] : turns[turn]) {
        if (place_.node == second) follow(first, end);
        if (place_.node != first) continue;
        const std::optional<LinkSpeed> speed = lead(second, end);
        const Result result{.speed = speed.value_or(LinkSpeed{}), .is_measured = speed ? 1 : 0};
        if (is_first()) {
          own_ = result;
        } else {
          messenger_.send(0, Part::kResult, result);
        }
      }
    }
  }

  // The first node of a pair decides how much is sent.
  [[nodiscard]] std::optional<LinkSpeed> lead(int other, const Deadline& end) {
    LinkSpeed speed{.first = place_.node, .second = other};
    std::vector<std::int64_t> times_ns;
    const Deadline enough = Deadline::after_seconds(settings_.seconds_per_link);
    for (int i = 0;; ++i) {
      const bool has_enough = times_ns.size() == kMaxPings || (times_ns.size() >= kMinPings && enough.passed());
      const std::int64_t begin_ns = now_ns();
      messenger_.send(other, Part::kPing, Question{.is_last = has_enough ? 1 : 0});
      if (!messenger_.receive<Question>(other, Part::kPing, end)) return std::nullopt;
      if (i >= kFirstPings) times_ns.push_back(now_ns() - begin_ns);
      if (has_enough) break;
    }
    std::ranges::nth_element(times_ns, times_ns.begin() + static_cast<std::ptrdiff_t>(times_ns.size() / 2));
    speed.latency_us = static_cast<double>(times_ns[times_ns.size() / 2]) / 2e3;

    const auto first_seconds = messenger_.exchange(other, kFirstMessages, end);
    if (!first_seconds) return std::nullopt;
    const double rate = kFirstMessages / std::max(*first_seconds, 1e-6);
    const auto most = static_cast<double>(settings_.max_bytes_per_link) / static_cast<double>(kMessageBytes);
    const auto count =
        static_cast<std::int32_t>(std::max<double>(kMinMessages, std::min(most, rate * settings_.seconds_per_link)));
    messenger_.send(other, Part::kCount, count);
    const auto seconds = messenger_.exchange(other, count, end);
    const auto rate_of_other = messenger_.receive<double>(other, Part::kRate, end);
    if (!seconds || !rate_of_other) return std::nullopt;
    speed.gbs_to_first = gbs(count, *seconds);
    speed.gbs_to_second = *rate_of_other;
    return speed;
  }

  void follow(int other, const Deadline& end) {
    while (true) {
      const auto question = messenger_.receive<Question>(other, Part::kPing, end);
      if (!question) return;
      messenger_.send(other, Part::kPing, *question);
      if (question->is_last != 0) break;
    }
    if (!messenger_.exchange(other, kFirstMessages, end)) return;
    const auto count = messenger_.receive<std::int32_t>(other, Part::kCount, end);
    if (!count) return;
    if (const auto seconds = messenger_.exchange(other, *count, end))
      messenger_.send(other, Part::kRate, gbs(*count, *seconds));
  }

  // On node 0.
  [[nodiscard]] std::optional<LinkSpeed> speed_of(int node) {
    const auto result =
        node == 0 ? std::optional(own_) : messenger_.receive<Result>(node, Part::kResult, end_of_part(num_parts_));
    if (!result || result->is_measured == 0) return std::nullopt;
    return result->speed;
  }

  MeasurementSettings settings_;
  const NodePlace place_;
  const Deadline start_ = Deadline::after_ns(0);
  Messenger messenger_;
  Result own_;
  int num_parts_ = 1;
};

}  // namespace

std::vector<std::vector<std::pair<int, int>>> turns_of_neighbours(int num_nodes) {
  if (num_nodes < 2) return {};
  if (num_nodes == 2) return {{{0, 1}}};
  std::vector<std::vector<std::pair<int, int>>> turns(num_nodes % 2 == 0 ? 2 : 3);
  for (int node = 0; node < num_nodes; ++node) {
    const bool closes_odd_ring = node == num_nodes - 1 && num_nodes % 2 != 0;
    turns[closes_odd_ring ? 2 : static_cast<std::size_t>(node % 2)].emplace_back(node, (node + 1) % num_nodes);
  }
  return turns;
}

std::optional<NodesMeasurement> measure_nodes(NodeNetwork& network, const MeasurementSettings& settings) {
  return Measuring(network, settings).run();
}

}  // namespace rp
