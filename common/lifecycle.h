// common/lifecycle.h
// A state machine that is declared as a table: an enum of states, and one constexpr array of the transitions between
// them, each with its reason.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/check.h"

namespace rp {

template <typename State>
struct Transition {
  State from;
  State to;
  const char* why;
};

// The state of one object. `kTransitions` is a std::array<Transition<State>, n>. Not thread-safe: the lock that guards
// the object guards its lifecycle.
template <typename State, const auto& kTransitions>
class Lifecycle {
 public:
  explicit Lifecycle(State first) : state_(first) {}

  [[nodiscard]] State state() const { return state_; }
  // Why the object is in this state; "" in the first one.
  [[nodiscard]] const char* why() const { return why_; }

  // The only way to change the state. A transition that the table does not contain is a broken invariant.
  void move_to(State to) {
    const Transition<State>* found = find(to);
    RP_ASSERT(found != nullptr);
    state_ = to;
    why_ = found->why;
  }
  [[nodiscard]] bool can_move_to(State to) const { return find(to) != nullptr; }

 private:
  [[nodiscard]] const Transition<State>* find(State to) const {
    const auto found = std::find_if(kTransitions.begin(), kTransitions.end(), [&](const Transition<State>& transition) {
      return transition.from == state_ && transition.to == to;
    });
    return found == kTransitions.end() ? nullptr : &*found;
  }

  State state_;
  const char* why_ = "";
};

}  // namespace rp
