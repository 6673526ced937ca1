// launcher/lifecycles.h
// The states of a run and of its processes in rp-launch.
// A worker that is replaced (docs/design/replay.md) is another process, which begins in `starting`.
#pragma once

#include <cstdint>

#include "common/lifecycle.h"

namespace rp {

enum class RunPhase : std::uint8_t {
  kRunning,        // no failure so far
  kWorkerLost,     // a worker failed: the coordinator may end on its own
  kTerminating,    // the coordinator was sent TERM
  kInterrupted,    // second INT: the coordinator has little time left
  kRestarting,     // the coordinator died and can go on: the workers end, then the program is started again
  kWorkersEnding,  // the coordinator has ended: the workers are expected to end on their own
  kKilling,        // everything was sent KILL
  kDone,           // no process is left
};

inline constexpr LifecycleTable<RunPhase, 8, 17> kRunLifecycle = {
    "run",
    {"running", "worker lost", "terminating", "interrupted", "restarting", "workers ending", "killing", "done"},
    {{
        {RunPhase::kRunning, RunPhase::kWorkerLost, "a worker failed"},
        {RunPhase::kRunning, RunPhase::kInterrupted, "second INT"},
        {RunPhase::kRunning, RunPhase::kRestarting, "the coordinator died and can go on"},
        {RunPhase::kRestarting, RunPhase::kRunning, "the program is started again"},
        {RunPhase::kRestarting, RunPhase::kKilling, "a signal asked for the end"},
        {RunPhase::kRestarting, RunPhase::kDone, "a worker cannot be killed"},
        {RunPhase::kRunning, RunPhase::kWorkersEnding, "the coordinator ended"},
        {RunPhase::kWorkerLost, RunPhase::kTerminating,
         "the coordinator neither ended by itself nor wrote a checkpoint"},
        {RunPhase::kWorkerLost, RunPhase::kInterrupted, "second INT"},
        {RunPhase::kWorkerLost, RunPhase::kWorkersEnding, "the coordinator ended"},
        {RunPhase::kTerminating, RunPhase::kWorkersEnding, "the coordinator ended"},
        {RunPhase::kTerminating, RunPhase::kKilling, "the coordinator ignored TERM, or an INT"},
        {RunPhase::kInterrupted, RunPhase::kWorkersEnding, "the coordinator ended"},
        {RunPhase::kInterrupted, RunPhase::kKilling, "third INT, or too slow after the second"},
        {RunPhase::kWorkersEnding, RunPhase::kKilling, "a worker did not end by itself, or an INT"},
        {RunPhase::kWorkersEnding, RunPhase::kDone, "all ended"},
        {RunPhase::kKilling, RunPhase::kDone, "all ended, or one cannot be killed"},
    }}};

enum class MemberState : std::uint8_t {
  kStarting,        // the coordinator has not made the host store; a worker was not sent it
  kAttaching,       // a worker that was sent the host store
  kAttached,        // has the host store
  kKilled,          // was sent KILL by rp-launch: its death is not a failure
  kEnded,           // was reaped, without KILL by rp-launch
  kEndedOnPurpose,  // was reaped after KILL by rp-launch
};

inline constexpr LifecycleTable<MemberState, 6, 10> kMemberLifecycle = {
    "process",
    {"starting", "attaching", "attached", "killed", "ended", "ended on purpose"},
    {{
        {MemberState::kStarting, MemberState::kAttaching, "the worker was sent the host store"},
        {MemberState::kStarting, MemberState::kAttached, "the coordinator has made the host store"},
        {MemberState::kAttaching, MemberState::kAttached, "the worker reported that its start succeeded"},
        {MemberState::kStarting, MemberState::kKilled, "the run ends"},
        {MemberState::kAttaching, MemberState::kKilled, "the run ends"},
        {MemberState::kAttached, MemberState::kKilled, "the run ends"},
        {MemberState::kStarting, MemberState::kEnded, "reaped"},
        {MemberState::kAttaching, MemberState::kEnded, "reaped"},
        {MemberState::kAttached, MemberState::kEnded, "reaped"},
        {MemberState::kKilled, MemberState::kEndedOnPurpose, "reaped"},
    }}};

}  // namespace rp
