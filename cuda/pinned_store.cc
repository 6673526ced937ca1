#include "cuda/pinned_store.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/futex.h"
#include "common/text.h"
#include "hoststore/boundary.h"

namespace rp {

namespace {

const std::atomic<bool> kNeverStop{false};

std::vector<Store::Region> cut_regions(Store& store) {
  std::vector<Store::Region> regions = store.regions();
  std::erase_if(regions, [](const Store::Region& region) { return region.cuts.empty(); });
  return regions;
}

}  // namespace

PinnedStore::PinnedStore(PinnedMemory& memory, Store& store, Warn warn, std::uint64_t piece_bytes)
    : memory_(memory), store_(store), warn_(std::move(warn)), piece_bytes_(piece_bytes), regions_(cut_regions(store)) {
  const std::span<std::byte> control = store.control();
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (const std::string why = memory.add(control.data(), align_up(control.size(), page), false); !why.empty()) {
    throw Error(ExitCode::kNoResource, cat("the control segment of the host store (", bytes_text(control.size()),
                                           ") cannot be registered with the CUDA driver: ", why,
                                           "; raise the limit on locked memory (ulimit -l)"));
  }
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
}

// SYNC: release; pairs with takes_notice(). Only a reason to look again: what there is to register is read from the store.
void PinnedStore::notice_unregistered(const std::byte* data) {
  for (const Store::Region& region : regions_) {
    if (data >= region.data && data < region.data + region.bytes) return;  // its turn comes, or it was given up
  }
  num_noticed_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&num_noticed_);
}

// SYNC: acquire; pairs with notice_unregistered().
bool PinnedStore::takes_notice() {
  const std::uint32_t num = num_noticed_.load(std::memory_order_acquire);
  return std::exchange(num_seen_, num) != num;
}

void PinnedStore::wait_until_through() const { (void)through_.wait_at_least(1, {&kNeverStop, 600 * kNsPerSecond}); }

void PinnedStore::run() {
  pthread_setname_np(pthread_self(), "rp-pin-store");
  for (const Store::Region& region : regions_) add_cut(region);
  through_.publish(1);
  while (!ends_.load()) {
    if (takes_notice()) add_activations();
    futex_wait(&num_noticed_, num_seen_, kNsPerSecond);
  }
}

void PinnedStore::add_cut(const Store::Region& region) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  Failure failure{.what = region.what, .why = {}, .of_bytes = region.bytes};
  for (std::uint64_t at = 0; at < region.bytes && !ends_.load();) {
    std::uint64_t end = std::min(at + piece_bytes_, region.bytes);
    // The last layer that begins before: its own beginning may lie within a page.
    const auto cut = std::upper_bound(region.cuts.begin(), region.cuts.end(), end);
    if (end < region.bytes && cut != region.cuts.begin() && *std::prev(cut) / page * page > at) end = *std::prev(cut);
    end = end < region.bytes ? end / page * page : align_up(end, page);
    const std::string why = memory_.add(region.data + at, end - at, region.is_read_only);
    if (!why.empty()) {
      failure.why = why;
      failure.bytes += end - at;
    }
    at = end;
    if (takes_notice()) add_activations();  // those are needed first
  }
  if (failure.bytes > 0) warn_(failure_text(failure));
}

void PinnedStore::add_activations() {
  std::size_t number = 0;
  for (const Store::Region& region : store_.regions()) {
    if (!region.cuts.empty()) continue;
    if (number == arenas_.size()) arenas_.emplace_back();
    Arena& arena = arenas_[number++];
    if (region.bytes <= arena.registered_bytes) continue;
    const std::uint64_t bytes = region.bytes - arena.registered_bytes;
    const std::string why = memory_.add(region.data + arena.registered_bytes, bytes, false);
    arena.registered_bytes = region.bytes;
    if (why.empty() || std::exchange(arena.has_failed, true)) continue;
    warn_(failure_text({.what = region.what, .why = why, .bytes = bytes, .of_bytes = region.bytes}));
  }
}

std::string PinnedStore::failure_text(const Failure& failure) const {
  return cat(bytes_text(failure.bytes), " of ", bytes_text(failure.of_bytes), " of ", failure.what,
             " cannot be registered with the CUDA driver: ", failure.why,
             "; each copy of them goes through a pinned buffer and costs a pass over host memory more; raise the limit on locked "
             "memory (ulimit -l), or leave out --params-on");
}

}  // namespace rp
