// hoststore/epoch_word.h
// The word by which the coordinator changes the epoch (docs/design/replay.md).
#pragma once

#include <cstdint>

#include "hoststore/ids.h"
#include "hoststore/sequence_word.h"

namespace rp {

// An epoch is wanted first: workers drop the tasks of the one before. It begins when all of them have stopped.
struct EpochState {
  Epoch epoch{};
  bool has_begun = false;
  bool operator==(const EpochState&) const = default;
};

// In shared memory it has the format of a SequenceWord: twice the epoch, plus 1 once the epoch has begun. Writer: the
// coordinator.
class EpochWord {
 public:
  using ShmFormat = void;

  void publish_wanted(Epoch epoch) { publish({.epoch = epoch}); }
  void publish_begun(Epoch epoch) { publish({.epoch = epoch, .has_begun = true}); }
  [[nodiscard]] EpochState observe() const {
    const std::uint64_t value = word_.observe();
    return {.epoch = Epoch(value / 2), .has_begun = value % 2 != 0};
  }
  // Sleeps until the state is a later one than `state`, or one of the limits ends the wait.
  [[nodiscard]] WaitResult wait_change(const EpochState& state, const WaitLimits& limits) const {
    return word_.wait_at_least(value_of(state) + 1, limits);
  }
  void wake() const { word_.wake(); }

 private:
  static std::uint64_t value_of(const EpochState& state) { return 2 * state.epoch.value() + (state.has_begun ? 1 : 0); }
  void publish(const EpochState& state) { word_.publish(value_of(state)); }

  SequenceWord word_;
};
static_assert(sizeof(EpochWord) == 8 && ShmSafe<EpochWord>);

}  // namespace rp
