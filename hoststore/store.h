// hoststore/store.h
// The host store as one process sees it: control, parameters, optimizer state, gradients, activation arenas.
//
// The coordinator creates it, rp-launch holds the descriptors, workers attach. Everything is mapped until the Store
// ends; views that it gives out must not outlive it. Safe for use by the threads of one process: only the words, rings
// and blocks inside are written, each by the one writer that control.h names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hoststore/arena_view.h"
#include "hoststore/catalogue.h"
#include "hoststore/control.h"
#include "hoststore/memory/page_populator.h"
#include "hoststore/memory/segment.h"

namespace rp {

struct StoreSettings {
  std::string backing;      // "shm", "memfd" or "" for the best
  std::string params_on{};  // the directory for parameters, optimizer state and gradients; "" for memory
  std::uint32_t num_workers = 1;
  std::uint32_t stage_buffers = 2;
  std::uint32_t threads_per_worker = 1;
  std::uint64_t fingerprint = 0;
  std::uint64_t build_id = 0;
  std::uint64_t arena_limit_bytes = std::uint64_t{1} << 40;
  std::int64_t wait_timeout_ns = 600'000'000'000;
  bool weights_yield = true;  // to inputs, on a worker's link; gradients to outputs: docs/design/transfers.md
  bool gradients_yield = true;
  // Arenas (but not control) are made without memory: for emulated runs, in which nobody reads or writes their data.
  bool is_sparse = false;
  std::uint64_t emulated_memory_bytes = 0;  // sparse: what the emulated machine has; 0: without a limit
  bool check_consistency = false;  // stamps, and round tables with checksums: docs/design/consistency-checker.md
};

// Bytes of the store by arena.
struct StoreBytes {
  std::uint64_t control = 0;
  std::uint64_t parameters = 0;
  std::uint64_t state = 0;
  std::uint64_t gradients = 0;
  std::uint64_t activations = 0;  // of all workers and of the rounds' inputs: they grow
  [[nodiscard]] std::uint64_t total() const { return control + weights() + activations; }
  // What StoreSettings::params_on puts in files.
  [[nodiscard]] std::uint64_t weights() const { return parameters + state + gradients; }
};

// What devices see of the store, the most urgent first.
enum class StorePart { kControl, kActivations, kWeights, kGradients };
inline constexpr std::size_t kNumStoreParts = 4;
[[nodiscard]] const char* store_part_name(StorePart part);

class Store {
 public:
  // Creates and reserves all arenas (or not: StoreSettings::is_sparse). Throws rp::Error: kNoResource with need, free
  // and remedy; kUsage for more workers or layers than control.h has room for, and a params_on that is no directory.
  static std::unique_ptr<Store> create(const StoreSettings& settings, const Catalogue& catalogue);

  // Populates the memory of weights, optimizer state and gradients, as far as this process maps it, in threads of its
  // own (page_populator.h). Does nothing where that is files or an emulated run's. Call once.
  void populate_ahead(int num_threads);
  // For tests and measurements: returns when that is done.
  void wait_until_populated();

  // What create() would reserve; no activations yet.
  [[nodiscard]] static StoreBytes needed(const StoreSettings& settings, const Catalogue& catalogue);

  // Maps the store of another process from descriptors() in their order; parameters read-only and without the
  // optimizer's state. Throws rp::Error for what is no store or another version.
  static std::unique_ptr<Store> attach(std::vector<UniqueFd> descriptors);

  // All descriptors, in the order that attach() takes; they stay this Store's.
  [[nodiscard]] std::vector<int> descriptors() const;

  [[nodiscard]] const ControlHeader& header() const { return *reinterpret_cast<const ControlHeader*>(control_.data()); }
  [[nodiscard]] const Catalogue& catalogue() const { return catalogue_; }
  // Of what lies in memory.
  [[nodiscard]] Backing backing() const { return backing_; }
  // How the pages of weights, gradients and optimizer state were taken, in the creating process.
  struct Placement {
    bool has_huge_pages = false;
    int num_nodes = 1;  // NUMA nodes that they are interleaved over
  };
  [[nodiscard]] const Placement& placement() const { return placement_; }
  // What the kernel has allocated to the arenas by now.
  [[nodiscard]] StoreBytes allocated() const;
  [[nodiscard]] int num_workers() const { return static_cast<int>(header().num_workers); }

  // Words. Writers are named in control.h.
  [[nodiscard]] SequenceWord& epoch() { return *at<SequenceWord>(layout_.epoch, 0); }
  [[nodiscard]] SequenceWord& failed() { return *at<SequenceWord>(layout_.failed, 0); }
  [[nodiscard]] SequenceWord& published(std::uint32_t group) { return *at<SequenceWord>(layout_.published, group); }
  [[nodiscard]] SequenceWord& gradient_released(std::uint32_t use) {
    return *at<SequenceWord>(layout_.gradient_released, use);
  }
  [[nodiscard]] SequenceWord& update_heartbeat(std::uint32_t pipeline) {
    return *at<SequenceWord>(layout_.update_heartbeats, pipeline);
  }
  [[nodiscard]] LossScaleRecord& loss_scale(std::uint32_t pipeline) {
    return *at<LossScaleRecord>(layout_.loss_scales, pipeline);
  }
  [[nodiscard]] WorkerWords& worker_words(int worker);
  [[nodiscard]] EventRing& event_ring(int worker);
  [[nodiscard]] bool checks_consistency() const { return header().checks_consistency != 0; }
  // REQUIRES: checks_consistency().
  [[nodiscard]] WeightStamp& stamp(std::uint32_t group, std::uint64_t copy) {
    return *at<WeightStamp>(layout_.stamps, WeightStamp::kMaxCopies * group + copy);
  }
  // Grows while any worker computes, and while weights are updated: what waits in vain while this stands still waits
  // for something that hangs.
  [[nodiscard]] std::uint64_t progress();

  // Rings, as the private view of one side.
  [[nodiscard]] RingWriter<Command> command_writer(int worker);
  [[nodiscard]] RingReader<Command> command_reader(int worker);
  [[nodiscard]] RingWriter<Completion> completion_writer(int worker);
  [[nodiscard]] RingReader<Completion> completion_reader(int worker);
  [[nodiscard]] RingWriter<FreeRecord> free_writer(int worker);
  [[nodiscard]] RingReader<FreeRecord> free_reader(int worker);

  [[nodiscard]] FailureRecord& failure(int worker) {
    return *at<FailureRecord>(layout_.failures, static_cast<std::uint64_t>(worker));
  }

  // The table that a command or an origin names.
  template <typename Reference>
  [[nodiscard]] RoundTable round_table(const Reference& reference) {
    return RoundTable(arena(kCoordinatorArena).data(reference.table, reference.table_bytes));
  }

  // Arenas.
  [[nodiscard]] std::byte* parameters(std::uint64_t offset) { return parameters_.data() + offset; }
  [[nodiscard]] const std::byte* parameters(std::uint64_t offset) const { return parameters_.data() + offset; }
  [[nodiscard]] std::byte* gradients(std::uint64_t offset) { return gradients_.data() + offset; }
  // Coordinator only.
  [[nodiscard]] float* state(std::uint64_t offset) { return reinterpret_cast<float*>(state_.data() + offset); }
  // Worker w's activation arena, or the coordinator's (kCoordinatorArena).
  [[nodiscard]] ArenaView& arena(std::uint64_t arena);

  // What this process has mapped by now of a file of the store, from its first byte on. `cuts`: where weights and
  // gradients of another layer begin, in order.
  struct Region {
    StorePart part = StorePart::kControl;
    int fd = -1;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool is_read_only = false;
    std::span<const std::uint64_t> cuts{};  // lives as long as the Store
  };
  // The memory that devices copy to and from: weights, gradients, then activations.
  [[nodiscard]] std::vector<Region> regions();
  // The control segment, whose words devices write and wait for.
  [[nodiscard]] Region control();

  // The memory of a block, mapped on demand.
  [[nodiscard]] const std::byte* block_data(const BlockPlace& place) {
    return arena(place.arena).data(place.offset, place.bytes);
  }
  // The working copy in which a version lies: only the coordinator writes to it. And a use's gradient.
  [[nodiscard]] std::span<std::byte> working_copy(std::uint32_t group, std::uint64_t version) {
    const WeightGroupRecord& record = catalogue_.weight_groups()[group];
    return {parameters(record.parameter_offset[version % record.num_copies]), record.bytes()};
  }
  [[nodiscard]] std::span<const std::byte> gradient(std::uint32_t use) {
    const UseRecord& record = catalogue_.uses()[use];
    return {gradients(record.gradient_offset), catalogue_.weight_groups()[record.group].bytes()};
  }

 private:
  Store() = default;
  void reserve(const StoreSettings& settings, const StoreBytes& bytes, bool by_populating);
  void populate_huge_pages();
  void map(bool is_coordinator);
  [[nodiscard]] std::vector<PagePopulator::Range> populated_ranges() const;
  void find_cuts();
  template <typename T>
  [[nodiscard]] T* at(std::uint64_t region, std::uint64_t index) {
    return reinterpret_cast<T*>(control_.data() + region) + index;
  }
  [[nodiscard]] std::byte* ring_memory(std::uint64_t region, std::uint64_t bytes, int worker);

  Backing backing_ = Backing::kMemfd;
  Placement placement_;
  Catalogue catalogue_;
  ControlLayout layout_{ControlHeader{}};
  std::vector<Segment> segments_;  // control, parameters, gradients, state
  Mapping control_;
  Mapping parameters_;
  Mapping gradients_;
  Mapping state_;
  std::vector<std::unique_ptr<ArenaView>> arenas_;  // workers', then the coordinator's
  std::vector<std::uint64_t> parameter_cuts_;       // of regions(), in order
  std::vector<std::uint64_t> gradient_cuts_;
  std::optional<PagePopulator> populator_;  // last: it uses the mappings
};

}  // namespace rp
