// hoststore/store.h
// The host store as one process sees it: control segment, parameters, optimizer state, gradients
// and activation arenas.
//
// The coordinator creates the store, rp-launch holds its descriptors, and workers attach to it.
// Everything stays mapped until the Store is destroyed, and views that it returns must not outlive
// it. All threads of a process may use it at the same time, because only the words, rings and
// blocks in it are written, each by the one writer that control.h names.
#pragma once

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
#include "hoststore/step_journal.h"

namespace rp {

struct StoreSettings {
  std::string backing;      // "shm", "memfd", or "" to choose the better one
  std::string params_on{};  // directory for the files of parameters, optimizer state and gradients; "" for memory
  std::uint32_t num_workers = 1;
  std::uint32_t stage_buffers = 2;
  std::uint32_t threads_per_worker = 1;
  std::uint64_t fingerprint = 0;
  std::uint64_t build_id = 0;
  std::uint64_t arena_limit_bytes = std::uint64_t{1} << 40;
  std::int64_t wait_timeout_ns = 600'000'000'000;
  bool weights_yield = true;    // weights yield to inputs on a worker's link: docs/design/transfers.md
  bool gradients_yield = true;  // gradients yield to outputs on a worker's link
  // The arenas, but not the control segment, are created without memory: for emulated runs, in
  // which no process reads or writes their data.
  bool is_sparse = false;
  std::uint64_t emulated_memory_bytes = 0;  // sparse: the memory of the emulated machine; 0: no limit
  // By pipeline: the scratch memory of the journal of steps (step_journal.h). Empty: there is no journal.
  std::vector<std::uint64_t> journal_scratch_bytes{};
  bool check_consistency = false;  // weight stamps, and round tables with checksums: docs/design/consistency-checker.md
};

// The size of the store in bytes, by arena.
struct StoreBytes {
  std::uint64_t control = 0;
  std::uint64_t parameters = 0;
  std::uint64_t state = 0;
  std::uint64_t gradients = 0;
  std::uint64_t activations = 0;  // of all workers and of the rounds' inputs; these arenas grow during the run
  [[nodiscard]] std::uint64_t total() const { return control + weights() + activations; }
  // The part of the store that StoreSettings::params_on stores in files.
  [[nodiscard]] std::uint64_t weights() const { return parameters + state + gradients; }
};

// The parts of the store that devices access, in order of decreasing urgency.
enum class StorePart { kControl, kActivations, kWeights, kGradients };
inline constexpr std::size_t kNumStoreParts = 4;
[[nodiscard]] const char* store_part_name(StorePart part);

// What a coordinator that has died leaves to another one: weights, gradients, optimizer state, and its journal.
struct StoreRemains {
  // `descriptors`: those of its Store. Throws rp::Error (kUserError) if there is no journal.
  [[nodiscard]] static StoreRemains of(std::vector<UniqueFd> descriptors);

  [[nodiscard]] std::uint64_t allocated_bytes() const;

  std::vector<Segment> segments;  // parameters, gradients, state
  std::unique_ptr<StepJournal> journal;
};

class Store {
 public:
  // Creates the store and, unless it is sparse, reserves all its arenas. Throws rp::Error:
  // kNoResource, with the need, the free amount and a remedy; kUsage if there are more workers or
  // layers than control.h allows, or if params_on is not a directory.
  static std::unique_ptr<Store> create(const StoreSettings& settings, const Catalogue& catalogue);
  // Creates a store around the remains of another one: everything but weights, gradients, optimizer state and journal
  // is new. Throws rp::Error (kUserError) if they are of another program or model.
  static std::unique_ptr<Store> create(const StoreSettings& settings, const Catalogue& catalogue, StoreRemains remains);

  // Populates the memory of weights, optimizer state and gradients that this process has mapped, in
  // background threads (page_populator.h). Does nothing if that memory is in files or belongs to an
  // emulated run. Call once.
  void populate_ahead(int num_threads);
  // For tests and measurements: blocks until populate_ahead() has finished.
  void wait_until_populated();

  // Returns the sizes that create() would reserve. Activations are 0, because their arenas start
  // empty.
  [[nodiscard]] static StoreBytes needed(const StoreSettings& settings, const Catalogue& catalogue);

  // Maps the store of another process. `descriptors`: those of descriptors(), in the same order.
  // Parameters are mapped read-only, and the optimizer state is not mapped. Throws rp::Error if the
  // descriptors are not a host store of this version.
  static std::unique_ptr<Store> attach(std::vector<UniqueFd> descriptors);

  // Returns all descriptors, in the order that attach() expects. The Store remains their owner.
  [[nodiscard]] std::vector<int> descriptors() const;

  [[nodiscard]] const ControlHeader& header() const { return *reinterpret_cast<const ControlHeader*>(control_.data()); }
  [[nodiscard]] const Catalogue& catalogue() const { return catalogue_; }
  // The backing of the segments that are in memory.
  [[nodiscard]] Backing backing() const { return backing_; }
  // The kind and placement of the pages of weights, gradients and optimizer state, in the process
  // that created the store.
  struct Placement {
    bool has_huge_pages = false;
    int num_nodes = 1;  // NUMA nodes over which the pages are interleaved
  };
  [[nodiscard]] const Placement& placement() const { return placement_; }
  // Returns how much memory or disk space the kernel has allocated to the store so far.
  [[nodiscard]] StoreBytes allocated() const;
  // In the coordinator: the journal of steps; null if there is none.
  [[nodiscard]] StepJournal* journal() { return journal_.get(); }
  [[nodiscard]] std::uint64_t journal_bytes() const { return journal_ ? journal_->bytes() : 0; }
  [[nodiscard]] int num_workers() const { return static_cast<int>(header().num_workers); }

  // Words. control.h names their writers.
  [[nodiscard]] EpochWord& epoch() { return *at<EpochWord>(layout_.epoch, 0); }
  [[nodiscard]] SequenceWord& failed() { return *at<SequenceWord>(layout_.failed, 0); }
  [[nodiscard]] NumberWord<Version>& published(GroupId group) {
    return *at<NumberWord<Version>>(layout_.published, group.value());
  }
  [[nodiscard]] SequenceWord& gradient_released(UseId use) {
    return *at<SequenceWord>(layout_.gradient_released, use.value());
  }
  [[nodiscard]] SequenceWord& update_heartbeat(std::uint32_t pipeline) {
    return *at<SequenceWord>(layout_.update_heartbeats, pipeline);
  }
  [[nodiscard]] LossScaleRecord& loss_scale(std::uint32_t pipeline) {
    return *at<LossScaleRecord>(layout_.loss_scales, pipeline);
  }
  [[nodiscard]] WorkerWords& worker_words(int worker);
  [[nodiscard]] EventRing& event_ring(int worker);
  [[nodiscard]] CommunicatorId& communicator(int worker) {
    return *at<CommunicatorId>(layout_.communicators, static_cast<std::uint64_t>(worker));
  }
  [[nodiscard]] bool checks_consistency() const { return header().checks_consistency != 0; }
  // REQUIRES: checks_consistency().
  [[nodiscard]] WeightStamp& stamp(GroupId group, std::uint64_t copy) {
    return *at<WeightStamp>(layout_.stamps, WeightStamp::kMaxCopies * group.value() + copy);
  }
  // Wakes all threads that wait for a word of another process, so that they check WaitLimits::stop.
  void wake_waiters();
  // Increases while any worker computes or any weights are updated. A wait that times out while
  // this value has not changed is waiting for something that hangs.
  [[nodiscard]] std::uint64_t progress();

  // The ends of the rings. Each is a private view for one process.
  [[nodiscard]] RingWriter<Command> command_writer(int worker);
  [[nodiscard]] RingReader<Command> command_reader(int worker);
  [[nodiscard]] RingWriter<Completion> completion_writer(int worker);
  [[nodiscard]] RingReader<Completion> completion_reader(int worker);
  [[nodiscard]] RingWriter<FreeRecord> free_writer(int worker);
  [[nodiscard]] RingReader<FreeRecord> free_reader(int worker);

  // Returns the blocks of a worker's arena that are in use at the beginning of the last epoch in which it takes part.
  [[nodiscard]] std::span<const LiveBlock> live_blocks(int worker);

  [[nodiscard]] FailureRecord& failure(int worker) {
    return *at<FailureRecord>(layout_.failures, static_cast<std::uint64_t>(worker));
  }

  // Returns the table to which a Command or a BlockOrigin refers.
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
  // The activation arena of worker w, or the coordinator's arena (kCoordinatorArena).
  [[nodiscard]] ArenaView& arena(std::uint64_t arena);

  // The part of one of the store's files that this process has mapped so far, from the file's first
  // byte on. `cuts`: the offsets at which another working copy or gradient begins, in ascending
  // order.
  struct Region {
    StorePart part = StorePart::kControl;
    int fd = -1;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool is_read_only = false;
    std::span<const std::uint64_t> cuts{};  // valid as long as the Store exists
  };
  // Returns the memory that devices copy to and from: weights, gradients, then activations.
  [[nodiscard]] std::vector<Region> regions();
  // Returns the control segment, whose words devices write and wait for.
  [[nodiscard]] Region control();

  // Returns the memory of a block, and maps it first if necessary.
  [[nodiscard]] const std::byte* block_data(const BlockPlace& place) {
    return arena(place.arena).data(place.offset, place.bytes);
  }
  // Returns the working copy that holds `version`. Only the coordinator writes to it.
  [[nodiscard]] std::span<std::byte> working_copy(GroupId group, Version version) {
    const WeightGroupRecord& record = catalogue_.weight_groups()[group];
    return {parameters(record.parameter_offset[record.copy_of(version)]), record.bytes()};
  }
  // Returns the buffer of a use's gradient.
  [[nodiscard]] std::span<const std::byte> gradient(UseId use) {
    const UseRecord& record = catalogue_.uses()[use];
    return {gradients(record.gradient_offset), catalogue_.gradient_buffer_bytes(record.group)};
  }

 private:
  Store() = default;
  static std::unique_ptr<Store> create(const StoreSettings& settings, const Catalogue& catalogue,
                                       std::optional<StoreRemains> remains);
  // Creates the segments of weights, gradients and state.
  void create_segments(const StoreSettings& settings, const StoreBytes& bytes, bool by_populating);
  void adopt(StoreRemains remains, const StoreBytes& bytes);
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
  std::unique_ptr<StepJournal> journal_;
  Mapping control_;
  Mapping parameters_;
  Mapping gradients_;
  Mapping state_;
  std::vector<std::unique_ptr<ArenaView>> arenas_;  // one per worker, then the coordinator's
  std::vector<std::uint64_t> parameter_cuts_;       // sorted; used by regions()
  std::vector<std::uint64_t> gradient_cuts_;
  std::optional<PagePopulator> populator_;  // last, because it uses the mappings
};

}  // namespace rp
