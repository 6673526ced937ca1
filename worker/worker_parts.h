// worker/worker_parts.h
// Holds what the threads of a worker share in one epoch: the store, the device, the task flow and the observers.
//
// Owned by the EpochService, which destroys it after the threads' classes. Everything that it refers to must outlive
// it.
#pragma once

#include "device/device.h"
#include "hoststore/store.h"
#include "worker/node_gradients.h"
#include "worker/observers/worker_observers.h"
#include "worker/task_flow.h"
#include "worker/thread_waits.h"

namespace rp {

struct WorkerParts {
  WorkerParts(Store& of_run, int of_worker, Device& own_device, OutputSignals& own_signals,
              WorkerObservers& own_observers, NodeGradients* node_gradients)
      : store(of_run),
        number(of_worker),
        device(own_device),
        signals(own_signals),
        observers(own_observers),
        nodes(node_gradients),
        flow(own_device, of_run.header().stage_buffers) {}

  [[nodiscard]] ThreadWaits waits(WorkerThread thread) { return {store, number, flow, observers.waits(thread)}; }

  Store& store;
  const int number;
  Device& device;
  OutputSignals& signals;
  WorkerObservers& observers;
  NodeGradients* const nodes;  // nullptr: the coordinators exchange gradients, or there is one node
  TaskFlow flow;
};

}  // namespace rp
