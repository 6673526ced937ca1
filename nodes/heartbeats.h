// nodes/heartbeats.h
// Notices that another node is gone: the network itself never says so.
//
// Each node sends a short message to the next one, the last node to the first, several times in each timeout. So every
// node is observed by one other, and observes one, however many they are. If nothing comes for the timeout, the run of
// this node fails (NodeNetwork::report_failure()), and its last message has the next node fail for the same reason. The
// run of a node that is cut off fails as well.
//
// Only time in which this process runs counts, so a job that was stopped by a signal can go on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <thread>

#include "common/mutex.h"
#include "nodes/network.h"

namespace rp {

// Owned by the Session of a coordinator. Has a thread.
class NodeHeartbeats {
 public:
  // The network must outlive this object. All nodes must have one.
  NodeHeartbeats(NodeNetwork& network, std::int64_t timeout_ns);
  ~NodeHeartbeats();
  NodeHeartbeats(const NodeHeartbeats&) = delete;
  NodeHeartbeats& operator=(const NodeHeartbeats&) = delete;

  // Must be called before the network ends, unless the run has failed. Waits until the node that this one observes
  // calls it. Throws the error of NodeNetwork::report_failure().
  void finish();

 private:
  struct Place {
    std::int32_t node = -1;
    std::array<char, 60> host{};
  };
  // What a node sends.
  struct Beat {
    Place sender;
    Place lost;  // the node that is lost, if there is one
    std::int32_t is_last = 0;
  };
  // Used by functions that the network calls, also after this object has ended.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    Beat sent;                            // changed only while it is not being sent
    Beat last;                            // sent once, also while the one before it is on its way
    Beat received;                        // changed only by what is received
    Place observed RP_GUARDED_BY(mutex);  // the node that this one observes
    Place lost RP_GUARDED_BY(mutex);
    int num_sending RP_GUARDED_BY(mutex) = 0;
    bool has_heard RP_GUARDED_BY(mutex) = true;  // since the thread last looked
    bool has_heard_last RP_GUARDED_BY(mutex) = false;
    bool finishes RP_GUARDED_BY(mutex) = false;
    bool stops RP_GUARDED_BY(mutex) = false;
    std::exception_ptr error RP_GUARDED_BY(mutex);
  };

  static void receive(NodeNetwork& network, const std::shared_ptr<Shared>& shared);
  void run();
  void send(const Beat& beat);
  // Fails the run, here and at the next node.
  void report(const Place& lost);

  NodeNetwork& network_;
  const std::int64_t timeout_ns_;
  Place own_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace rp
