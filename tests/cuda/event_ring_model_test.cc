// Models the ring of events of cuda/event_signals.cc and checks every interleaving: one producer,
// its GPU, two consumers, a ring of two. No wait is ever enqueued for a different recording than
// the intended one, there is no deadlock, and each deliberate mistake is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <compare>
#include <deque>
#include <set>
#include <string>
#include <vector>

namespace rp {
namespace {

constexpr int kRing = 2;
constexpr int kEvents = 6;
constexpr int kConsumers = 2;

enum class Mistake {
  kNone,
  kRecordsWithoutProof,     // the producer does not wait until the old number is complete
  kRecordsWhatIsHeld,       // the producer does not check `held`
  kWaitsWithoutSecondLook,  // a consumer that holds a number does not check again whether it is complete
  kHoldsWithoutFence,       // its store to `held` may become visible to others after its second check
  kLetsGoBeforeTheWait,     // a consumer clears `held` before it enqueues the wait
  kIssuesBeforeRecording,   // the producer publishes `issued` before it records
};

// The events that each consumer reads, in this order; also late ones, as a recompute does.
const std::array<std::vector<int>, kConsumers> kReads = {std::vector<int>{1, 2, 3, 4, 5, 6},
                                                         std::vector<int>{2, 1, 5, 3}};

struct Producer {
  int event = 1;  // the next event
  int step = 0;   // 0: proof, 1 .. kConsumers: check of each `held`, then record and issue
  auto operator<=>(const Producer&) const = default;
};
struct Consumer {
  int read = 0;  // index of its current read
  int step = 0;
  int buffered = -1;  // a store to `held` that is not visible to others yet
  auto operator<=>(const Consumer&) const = default;
};
struct State {
  Producer producer;
  std::array<Consumer, kConsumers> consumers;
  std::array<int, kRing> recorded{};  // the number that each event was recorded for
  std::array<int, kConsumers> held{};
  int issued = 0;
  int in_stream = 0;  // the last number that was enqueued on the GPU
  int complete = 0;   // `events`
  auto operator<=>(const State&) const = default;
};

class Model {
 public:
  explicit Model(Mistake mistake) : mistake_(mistake) {}

  // Returns the first fault that is found, or "".
  std::string search() {
    std::deque<State> to_do = {State{}};
    std::set<State> seen = {State{}};
    while (!to_do.empty() && wrong_.empty()) {
      const State state = to_do.front();
      to_do.pop_front();
      next_.clear();
      step_producer(state);
      step_gpu(state);
      for (std::size_t c = 0; c < kConsumers; ++c) step_consumer(state, c);
      if (next_.empty() && !is_done(state)) wrong_ = "it comes to a stop";
      for (const State& next : next_) {
        if (seen.insert(next).second) to_do.push_back(next);
      }
    }
    num_states_ = seen.size();
    return wrong_;
  }
  [[nodiscard]] std::size_t num_states() const { return num_states_; }

 private:
  static bool is_done(const State& state) {
    bool done = state.producer.event > kEvents && state.complete == kEvents;
    for (std::size_t c = 0; c < kConsumers; ++c) {
      done = done && state.consumers[c].read == static_cast<int>(kReads[c].size());
    }
    return done;
  }

  void step_producer(State state) {
    Producer& p = state.producer;
    if (p.event > kEvents) return;
    const int old = p.event - kRing;
    constexpr int kRecord = kConsumers + 1, kIssue = kConsumers + 2;
    if (p.step == 0) {
      if (old > 0 && state.complete < old && mistake_ != Mistake::kRecordsWithoutProof) return;
      p.step = old > 0 && mistake_ != Mistake::kRecordsWhatIsHeld ? 1 : kRecord;
    } else if (p.step <= kConsumers) {
      if (state.held[p.step - 1] == old) return;
      ++p.step;
    } else if ((p.step == kRecord) != (mistake_ == Mistake::kIssuesBeforeRecording)) {
      state.recorded[p.event % kRing] = p.event;
      state.in_stream = p.event;
      advance(p, kIssue);
    } else {
      state.issued = p.event;
      advance(p, kIssue);
    }
    next_.push_back(state);
  }
  static void advance(Producer& p, int last) {
    if (p.step == last) {
      p = {.event = p.event + 1, .step = 0};
    } else {
      ++p.step;
    }
  }

  void step_gpu(State state) {
    if (state.complete >= state.in_stream) return;
    ++state.complete;
    next_.push_back(state);
  }

  void step_consumer(State state, std::size_t number) {
    Consumer& c = state.consumers[number];
    if (c.buffered >= 0) {  // the store may become visible at any time
      State flushed = state;
      flushed.held[number] = c.buffered;
      flushed.consumers[number].buffered = -1;
      next_.push_back(flushed);
    }
    if (c.read == static_cast<int>(kReads[number].size())) return;
    const int wanted = kReads[number][c.read];
    const auto end_read = [&] { c = {.read = c.read + 1, .step = 0, .buffered = c.buffered}; };
    switch (c.step) {
      case 0:
        if (state.issued < wanted) return;
        ++c.step;
        break;
      case 1: state.complete >= wanted ? end_read() : void(++c.step); break;
      case 2:
        if (mistake_ == Mistake::kHoldsWithoutFence) {
          if (c.buffered >= 0) return;  // stores become visible in order
          c.buffered = wanted;
        } else {
          state.held[number] = wanted;
        }
        ++c.step;
        break;
      case 3:
        c.step = state.complete >= wanted && mistake_ != Mistake::kWaitsWithoutSecondLook ? 5 : 4;
        if (c.step == 4 && mistake_ == Mistake::kLetsGoBeforeTheWait) state.held[number] = 0;
        break;
      case 4: {
        const int recording = state.recorded[wanted % kRing];
        if (recording != wanted) {
          wrong_ = "a wait for event " + std::to_string(wanted) + " is enqueued on the recording of " +
                   std::to_string(recording);
        }
        ++c.step;
        break;
      }
      default:
        if (c.buffered >= 0) return;
        state.held[number] = 0;
        end_read();
    }
    next_.push_back(state);
  }

  const Mistake mistake_;
  std::string wrong_;
  std::vector<State> next_;
  std::size_t num_states_ = 0;
};

TEST(EventRingModel, NeverWaitsForAnotherRecordingAndNeverStops) {
  Model model(Mistake::kNone);
  EXPECT_EQ(model.search(), "");
  EXPECT_GT(model.num_states(), 1000U);
}

TEST(EventRingModel, FindsEachMistake) {
  for (const Mistake mistake :
       {Mistake::kRecordsWithoutProof, Mistake::kRecordsWhatIsHeld, Mistake::kWaitsWithoutSecondLook,
        Mistake::kHoldsWithoutFence, Mistake::kLetsGoBeforeTheWait, Mistake::kIssuesBeforeRecording}) {
    EXPECT_NE(Model(mistake).search(), "") << static_cast<int>(mistake);
  }
}

}  // namespace
}  // namespace rp
