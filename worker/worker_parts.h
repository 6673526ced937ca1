// worker/worker_parts.h
// Holds what the threads of a worker share: the store, the device, the task flow and the observers.
//
// Owned by the Worker, which destroys it after the threads' classes. Store and Device must outlive
// it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "device/device.h"
#include "hoststore/store.h"
#include "worker/observers/consistency_check.h"
#include "worker/observers/task_ranges.h"
#include "worker/observers/task_report.h"
#include "worker/observers/worker_trace.h"
#include "worker/task_flow.h"
#include "worker/thread_waits.h"

namespace rp {

struct WorkerParts {
  WorkerParts(Store& of_run, int of_worker, Device& own_device, std::optional<FaultBoardEntry> board,
              TraceJournal* journal, TaskRanges* given_ranges, std::function<void(std::exception_ptr)> fail)
      : store(of_run),
        number(of_worker),
        device(own_device),
        signals(own_device.connect(of_run, of_worker)),
        trace(journal, of_worker, own_device),
        ranges(given_ranges != nullptr ? *given_ranges : no_ranges_),
        report(board, trace),
        check(of_run, of_worker, std::move(fail)),
        flow(own_device, of_run.header().stage_buffers) {}

  [[nodiscard]] ThreadWaits waits(WorkerThread thread) { return {store, number, flow, report.waits(thread)}; }

  Store& store;
  const int number;
  Device& device;
  const std::unique_ptr<OutputSignals> signals;
  WorkerTrace trace;
  TaskRanges& ranges;
  TaskReport report;
  ConsistencyCheck check;
  TaskFlow flow;

 private:
  TaskRanges no_ranges_;
};

}  // namespace rp
