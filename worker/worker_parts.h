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
#include "worker/observers/worker_observers.h"
#include "worker/task_flow.h"
#include "worker/thread_waits.h"

namespace rp {

struct WorkerParts {
  WorkerParts(Store& of_run, int of_worker, Device& own_device, std::optional<FaultBoardEntry> board,
              TraceJournal* journal, TaskRanges* ranges, std::function<void(std::exception_ptr)> fail)
      : store(of_run),
        number(of_worker),
        device(own_device),
        signals(own_device.connect(of_run, of_worker)),
        observers(of_run, of_worker, own_device, board, journal, ranges, std::move(fail)),
        flow(own_device, of_run.header().stage_buffers) {}

  [[nodiscard]] ThreadWaits waits(WorkerThread thread) { return {store, number, flow, observers.waits(thread)}; }

  Store& store;
  const int number;
  Device& device;
  const std::unique_ptr<OutputSignals> signals;
  WorkerObservers observers;
  TaskFlow flow;
};

}  // namespace rp
