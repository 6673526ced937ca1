// coordinator/rounds/lifecycles.h
// The states of a round and of its tasks in the coordinator. A task belongs to a slot of the round. Rounds keep their
// state when an epoch ends, because only commits change it.
#pragma once

#include <cstdint>

#include "common/lifecycle.h"

namespace rp {

enum class RoundState : std::uint8_t {
  kNew,             // has no task yet
  kForward,         // its tasks are accepted; outputs and losses are not final
  kForwardOfGraph,  // the same, for a round whose backward pass is neither accepted nor dropped
  kGraphOpen,       // outputs are final; the backward pass is neither accepted nor dropped
  kBackward,        // outputs and losses are final; backward tasks are not committed
  kElsewhere,       // another node computes it; its losses have not arrived
  kDone,            // all tasks are committed, and no more will be added
};

inline constexpr LifecycleTable<RoundState, 7, 12> kRoundLifecycle = {
    "round",
    {"new", "forward", "forward of a graph", "open graph", "backward", "elsewhere", "done"},
    {{
        {RoundState::kNew, RoundState::kForward, "accepted"},
        {RoundState::kNew, RoundState::kForwardOfGraph, "accepted, and keeps its graph"},
        {RoundState::kNew, RoundState::kElsewhere, "another node computes it"},
        {RoundState::kElsewhere, RoundState::kDone, "its losses have arrived"},
        {RoundState::kNew, RoundState::kDone, "only contains the caller's initial buffers"},
        {RoundState::kForward, RoundState::kBackward, "the last forward or fused task is committed"},
        {RoundState::kForward, RoundState::kDone, "the last task is committed, and it had no backward tasks"},
        {RoundState::kForwardOfGraph, RoundState::kForward, "the backward pass is accepted, or the graph is dropped"},
        {RoundState::kForwardOfGraph, RoundState::kGraphOpen, "the last forward task is committed"},
        {RoundState::kGraphOpen, RoundState::kBackward, "the backward pass is accepted"},
        {RoundState::kGraphOpen, RoundState::kDone, "the graph is dropped"},
        {RoundState::kBackward, RoundState::kDone, "the last task is committed"},
    }}};

enum class TaskState : std::uint8_t {
  kPlanned,     // waits for the acceptance of its round, or of the round's backward pass
  kAccepted,    // has its place in the order of dispatch
  kDispatched,  // its command was sent to a worker
  kCommitted,   // its results are final
};

inline constexpr LifecycleTable<TaskState, 4, 4> kTaskLifecycle = {
    "task",
    {"planned", "accepted", "dispatched", "committed"},
    {{
        {TaskState::kPlanned, TaskState::kAccepted, "its round, or the backward pass, is accepted"},
        {TaskState::kAccepted, TaskState::kDispatched, "its worker has few enough tasks"},
        {TaskState::kDispatched, TaskState::kAccepted, "its epoch has ended"},
        {TaskState::kDispatched, TaskState::kCommitted, "it has succeeded, and all tasks before it are committed"},
    }}};

}  // namespace rp
