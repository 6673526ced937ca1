#include "coordinator/rounds/epochs.h"

#include "common/check.h"

namespace rp {

Epochs::Epochs(Store& store) : store_(store) {
  for (int worker = 0; worker < store.num_workers(); ++worker) members_.insert(worker);
  waiting_for_ = members_;
}

void Epochs::lose(int worker) {
  const bool ends_epoch = members_.contains(worker) || is_ready(worker);
  members_.erase(worker);
  waiting_for_.erase(worker);
  if (!ends_epoch) return;
  // Survivors' devices may wait for events of the dead worker. What they read then is dropped with the epoch.
  store_.worker_words(worker).events.publish(EventInEpoch(epoch_ + 1, EventNumber()));
  want_next();
}

void Epochs::admit_ready() {
  for (int worker = 0; worker < store_.num_workers(); ++worker) {
    if (members_.contains(worker) || !is_ready(worker)) continue;
    waiting_for_.insert(worker);
    return want_next();
  }
}

void Epochs::want_next() {
  RP_ASSERT(epoch_ + 1 < kEndEpoch);
  epoch_ = epoch_ + 1;
  is_changing_ = true;
  store_.epoch().publish_wanted(epoch_);
}

std::optional<int> Epochs::missing() const {
  for (const int worker : waiting_for_) {
    if (!is_ready(worker)) return worker;
  }
  return std::nullopt;
}

std::vector<int> Epochs::ready() const {
  std::vector<int> workers;
  for (int worker = 0; worker < store_.num_workers(); ++worker) {
    if (is_ready(worker)) workers.push_back(worker);
  }
  return workers;
}

// SYNC: the release of the epoch word pairs with the acquire in Worker::serve().
void Epochs::begin(const std::vector<int>& members) {
  members_ = {members.begin(), members.end()};
  waiting_for_ = members_;
  for (const int worker : members) store_.worker_words(worker).takes_part = epoch_.value() + 1;
  is_changing_ = false;
  store_.epoch().publish_begun(epoch_);
}

}  // namespace rp
