#include "cuda/pinned_store.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/system/futex.h"
#include "common/text.h"
#include "hoststore/memory/range_lock.h"

namespace rp {

namespace {

std::vector<Store::Region> weights_and_gradients(Store& store) {
  std::vector<Store::Region> regions = store.regions();
  std::erase_if(regions, [](const Store::Region& region) { return region.part == StorePart::kActivations; });
  return regions;
}

}  // namespace

PinnedStore::PinnedStore(PinnedMemory& memory, Store& store, Warn warn, const PinnedStoreOptions& options)
    : memory_(memory),
      store_(store),
      warn_(std::move(warn)),
      layers_(weights_and_gradients(store)),
      queue_(options.policy) {
  register_control(options);
  for (const Store::Region& region : layers_) queue_.add(region);
  thread_ = std::thread([this] { run(); });
}

PinnedStore::~PinnedStore() {
  stop();
  thread_.join();
}

void PinnedStore::stop() {
  ends_.store(true);
  num_noticed_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&num_noticed_);
  through_.wake();
}

// The worker can do nothing without the control segment, so no part of it is given up until later.
void PinnedStore::register_control(const PinnedStoreOptions& options) {
  RegistrationPolicy policy = options.policy;
  policy.later_ns = policy.latest_ns = policy.longest_pause_ns;
  RegistrationQueue queue(policy);
  const Store::Region control = store_.control();
  queue.add(control);
  const Deadline deadline = Deadline::after_ns(options.control_timeout_ns);
  while (!queue.is_empty()) {
    if (const auto attempt = queue.next(now_ns())) {
      try_to_register(queue, *attempt);
    } else if (!deadline.passed()) {
      sleep_until_ns(queue.next_ns());
    } else {
      throw Error(ExitCode::kNoResource,
                  cat("the control segment of the host store (", bytes_text(control.bytes),
                      ") cannot be registered with the CUDA driver: ", last_refusals_[StorePart::kControl],
                      "; it was tried for ", options.control_timeout_ns / kNsPerSecond,
                      " s; raise the limit on locked memory (ulimit -l)"));
    }
  }
}

// SYNC: release; pairs with takes_notice(). The notice is only a reason to look again; what can be
// registered is read from the store.
void PinnedStore::notice_unregistered(const std::byte* data) {
  for (const Store::Region& region : layers_) {
    if (data >= region.data && data < region.data + region.bytes) return;  // the queue has it already
  }
  num_noticed_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&num_noticed_);
}

// SYNC: acquire; pairs with notice_unregistered().
bool PinnedStore::takes_notice() {
  const std::uint32_t num = num_noticed_.load(std::memory_order_acquire);
  return std::exchange(num_seen_, num) != num;
}

void PinnedStore::wait_until_through() const { (void)through_.wait_at_least(1, {&ends_, 600 * kNsPerSecond}); }

void PinnedStore::run() {
  pthread_setname_np(pthread_self(), "rp-pin-store");
  while (true) {
    const bool has_notice = takes_notice();
    if (ends_.load()) return;  // checked after takes_notice(), since stop() sets it before its notice
    if (has_notice) add_activations();
    const auto attempt = queue_.next(now_ns());
    if (attempt) try_to_register(queue_, *attempt);
    report();
    if (!attempt) futex_wait_until(&num_noticed_, num_seen_, queue_.next_ns());
  }
}

void PinnedStore::add_activations() {
  std::size_t number = 0;
  for (const Store::Region& region : store_.regions()) {
    if (region.part != StorePart::kActivations) continue;
    if (number == arena_bytes_.size()) arena_bytes_.push_back(0);
    queue_.add(region, std::exchange(arena_bytes_[number++], region.bytes));
  }
}

void PinnedStore::try_to_register(RegistrationQueue& queue, const RegistrationQueue::Attempt& attempt) {
  std::string why;
  {
    std::optional<RangeLock> lock;
    if (!attempt.ignores_locks) lock.emplace(RangeLock::try_take(attempt.fd, attempt.offset, attempt.bytes));
    if (lock && lock->is_busy()) return queue.postpone(now_ns());
    why = memory_.add(attempt.data, attempt.bytes, attempt.is_read_only);
  }
  if (why.empty()) return queue.succeed();
  last_refusals_[attempt.part] = std::move(why);
  queue.refuse(now_ns());
}

void PinnedStore::report() {
  const auto has_open = [this](StorePart part) { return queue_.left(part).open_bytes > 0; };
  if (!has_open(StorePart::kWeights) && !has_open(StorePart::kGradients) && through_.observe() == 0)
    through_.publish(1);
  for (const StorePart part : {StorePart::kActivations, StorePart::kWeights, StorePart::kGradients}) {
    if (has_open(part) || queue_.left(part).given_up_bytes == 0 || std::exchange(is_reported_[part], true)) continue;
    has_staged_ = true;
    warn_(staged_text(part));
  }
  if (has_staged_ && queue_.is_empty()) {
    has_staged_ = false;
    is_reported_ = {};
    warn_(
        "all of the host store is registered with the CUDA driver now: no copy goes through a pinned buffer any more");
  }
}

std::string PinnedStore::staged_text(StorePart part) {
  std::uint64_t all_bytes = 0;
  for (const Store::Region& region : store_.regions()) all_bytes += region.part == part ? region.bytes : 0;
  return cat(bytes_text(queue_.left(part).given_up_bytes), " of ", bytes_text(all_bytes), " of ", store_part_name(part),
             " cannot be registered with the CUDA driver: ", last_refusals_[part],
             "; each copy of them goes through a pinned buffer, which costs another pass over host memory and at least "
             "half of the bus's speed; they are tried again from time to time; raise the limit on locked memory "
             "(ulimit -l), or leave out --params-on");
}

}  // namespace rp
