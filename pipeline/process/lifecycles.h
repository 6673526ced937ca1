// pipeline/process/lifecycles.h
// The states of a session, and of a worker process as the coordinator's process sees it.
// The epochs of a run (docs/design/replay.md) change neither.
#pragma once

#include <cstdint>

#include "common/lifecycle.h"

namespace rp {

enum class SessionState : std::uint8_t {
  kDescribing,  // pipelines may be made; start() has not succeeded
  kRunning,     // rounds and steps are accepted
  kFinishing,   // what was accepted is committed and applied
  kEnding,      // workers and threads end: the end of a worker is no failure any more
  kEnded,       // no thread of the run is left
};

// In a worker process start() does not return.
inline constexpr LifecycleTable<SessionState, 5, 7> kSessionLifecycle = {
    "session",
    {"describing", "running", "finishing", "ending", "ended"},
    {{
        {SessionState::kDescribing, SessionState::kRunning, "store, coordinator and workers have started"},
        {SessionState::kDescribing, SessionState::kEnding, "it, or a pipeline, is gone before a successful start()"},
        {SessionState::kRunning, SessionState::kFinishing, "it, or a pipeline, is gone"},
        {SessionState::kRunning, SessionState::kEnding, "an exception leaves main()"},
        {SessionState::kFinishing, SessionState::kEnding, "nothing is in flight, or the run has failed"},
        {SessionState::kEnding, SessionState::kDescribing, "no start() has succeeded"},
        {SessionState::kEnding, SessionState::kEnded, "all threads are joined"},
    }}};

enum class WorkerState : std::uint8_t {
  kStarting,  // has not acknowledged the epoch
  kServing,   // takes commands
  kGone,      // rp-launch has reported its end
  kLeft,      // the run goes on without it, unless the user has it started again
};

inline constexpr LifecycleTable<WorkerState, 4, 6> kWorkerLifecycle = {
    "worker",
    {"starting", "serving", "gone", "left"},
    {{
        {WorkerState::kStarting, WorkerState::kServing, "it has acknowledged the epoch"},
        {WorkerState::kStarting, WorkerState::kGone, "it ended while it started"},
        {WorkerState::kServing, WorkerState::kGone, "it ended unexpectedly"},
        {WorkerState::kGone, WorkerState::kStarting, "its tasks are taken back, so another may take its place"},
        {WorkerState::kGone, WorkerState::kLeft, "its tasks are taken back, and no other takes its place"},
        {WorkerState::kLeft, WorkerState::kGone, "it was started again, and ended"},
    }}};

}  // namespace rp
