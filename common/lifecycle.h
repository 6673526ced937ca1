// common/lifecycle.h
// The states that an object passes through, with a table of the allowed changes and the reason for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/indexed.h"

namespace rp {

template <typename State>
struct Transition {
  State from;
  State to;
  const char* why;
};

// `State`: an enumeration whose values are 0 to kNumStates - 1.
template <typename State, std::size_t kNumStates, std::size_t kNumTransitions>
struct LifecycleTable {
  using StateType = State;

  const char* subject;  // what the states belong to, for example "round"
  IndexedArray<State, const char*, kNumStates> names;
  std::array<Transition<State>, kNumTransitions> transitions;

  // Returns the reason of a change, or nullptr if it is not allowed.
  [[nodiscard]] constexpr const char* why(State from, State to) const {
    for (const Transition<State>& each : transitions) {
      if (each.from == from && each.to == to) return each.why;
    }
    return nullptr;
  }
};

// With RP_LOG_STATES=1 in the environment, prints a change of state to stderr. `number` and `pipeline`: of the
// object; -1: it has none. Aborts if `why` is nullptr, after recording the change as a broken invariant.
void log_transition(const char* subject, std::int64_t number, std::int64_t pipeline, const char* from, const char* to,
                    const char* why);

// The state of one object. It begins with the first state of the table.
template <const auto& kTable>
class Lifecycle {
 public:
  using State = typename std::remove_cvref_t<decltype(kTable)>::StateType;

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool is(State state) const { return state_ == state; }
  [[nodiscard]] const char* name() const { return kTable.names[state_]; }

  // REQUIRES: the table allows the change. `number` and `pipeline`: of the object, for the log.
  void move_to(State to, std::int64_t number = -1, std::int64_t pipeline = -1) {
    log_transition(kTable.subject, number, pipeline, name(), kTable.names[to], kTable.why(state_, to));
    state_ = to;
  }

 private:
  State state_{};
};

}  // namespace rp
