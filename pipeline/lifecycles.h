// pipeline/lifecycles.h
// The states of a session, and of a worker process as the coordinator's process sees it.
//
// Replay of a lost worker's tasks will add to the session:
//   replaying: a worker was lost, a new epoch has begun, and the tasks that are not committed are sent again. From
//     `running` when a worker is gone, and back when all tasks of the old epoch are committed. The end of the session
//     then leads to `finishing` from there, too.
// and to a worker:
//   respawning: its replacement starts, from `gone` when rp-launch was asked for one; to `serving` when the replacement
//     acknowledges the new epoch, or to `gone` again.
//   left out: the run goes on without it, with one worker less. From `gone` or `respawning`, and to `respawning` when
//     the worker returns.
// A worker that was not lost changes from `serving` to `starting` with each new epoch, until it acknowledges that
// epoch.
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
};

inline constexpr LifecycleTable<WorkerState, 3, 3> kWorkerLifecycle = {
    "worker",
    {"starting", "serving", "gone"},
    {{
        {WorkerState::kStarting, WorkerState::kServing, "it has acknowledged the epoch"},
        {WorkerState::kStarting, WorkerState::kGone, "it ended while it started"},
        {WorkerState::kServing, WorkerState::kGone, "it ended unexpectedly"},
    }}};

}  // namespace rp
