// nodes/heartbeats.h
// Notices that another node is gone: the network itself never says so.
//
// Each node sends a short message to the next one, the last node to the first, several times in each timeout. So every
// node is observed by one other, and observes one, however many they are. If nothing comes for the timeout, the run of
// this node fails (NodeNetwork::report_failure()), and its last message has the next node fail for the same reason. The
// run of a node that is cut off fails as well.
//
// Notices as well that all nodes wait for each other, as they do if their programs make different calls. Each message
// says how many nodes in a row, up to its sender, have done nothing but wait for others, and for how long all of them
// have at least. If these are all nodes and the time is the limit, the runs of all nodes fail.
//
// Only time in which this process runs counts, so a job that was stopped by a signal can go on.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "nodes/network.h"

namespace rp {

// What this node does while it does not go on. The functions are called from another thread.
struct NodeStandstill {
  // Returns for how long this node has waited for others and done nothing else; 0: it does not.
  std::function<std::int64_t()> wait_ns = [] { return std::int64_t{0}; };
  // Returns what it waits for: "other nodes to update version 7 of the weights"; "" if it does not wait.
  std::function<std::string()> wait_text = [] { return std::string(); };
  // After this time the runs of nodes that all wait for each other fail.
  std::int64_t limit_ns = INT64_MAX;
};

// Owned by the Session of a coordinator. Has a thread.
class NodeHeartbeats {
 public:
  // The network must outlive this object. All nodes must have one.
  NodeHeartbeats(NodeNetwork& network, std::int64_t timeout_ns, NodeStandstill standstill = {});
  ~NodeHeartbeats();
  NodeHeartbeats(const NodeHeartbeats&) = delete;
  NodeHeartbeats& operator=(const NodeHeartbeats&) = delete;

  // Must be called before the network ends, unless the run has failed. Waits until all nodes have called it, and counts
  // as waiting for them. Throws the error of NodeNetwork::report_failure().
  void finish();

 private:
  struct Place {
    std::int32_t node = -1;
    std::array<char, 60> host{};
  };
  // Nodes in a row that have done nothing but wait for others.
  struct Waiting {
    std::int64_t ns = 0;  // for how long all of them have, at least
    std::int32_t num_nodes = 0;
  };
  // What a node sends.
  struct Beat {
    Place sender;
    Place lost;                       // the node that is lost, if there is one
    Waiting waiting;                  // up to the sender
    std::int32_t all_wait = 0;        // the run has failed, since all nodes wait for each other
    std::int32_t all_have_ended = 0;  // the sender has called finish(), and so have all nodes from the first one to it
    std::int32_t is_last = 0;
    [[nodiscard]] bool has_failed() const { return lost.node >= 0 || all_wait != 0; }
  };
  // Used by functions that the network calls, also after this object has ended.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    Beat sent;                        // changed only while it is not being sent
    Beat last;                        // sent once, also while the one before it is on its way
    Beat received;                    // changed only by what is received
    Beat heard RP_GUARDED_BY(mutex);  // the newest that was received
    int num_sending RP_GUARDED_BY(mutex) = 0;
    bool has_heard RP_GUARDED_BY(mutex) = true;  // since the thread last looked
    bool finishes RP_GUARDED_BY(mutex) = false;
    bool stops RP_GUARDED_BY(mutex) = false;
    std::exception_ptr error RP_GUARDED_BY(mutex);
  };

  static void receive(NodeNetwork& network, const std::shared_ptr<Shared>& shared);
  void run();
  void send(const Beat& beat);
  // Returns the nodes that wait, up to this one. `own_ns`: for how long this one has waited; 0: it does not. `age_ns`:
  // of the newest beat.
  [[nodiscard]] Waiting waiting(std::int64_t own_ns, const Beat& heard, std::int64_t age_ns) const;
  [[nodiscard]] bool have_all_waited(const Waiting& waiting) const;
  // Returns what this node has to say now. `finishes`: finish() was called.
  [[nodiscard]] Beat next_beat(const Beat& heard, std::int64_t age_ns, std::int64_t own_ns, bool finishes) const;
  // Fails the run of this node.
  void report(const Beat& last, bool finishes);

  NodeNetwork& network_;
  const std::int64_t timeout_ns_;
  const std::int64_t interval_ns_;
  const NodeStandstill standstill_;
  Place own_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace rp
