#include "hoststore/store.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "common/system/core_dump.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "hoststore/data_checksum.h"
#include "hoststore/memory/memory_limit.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

enum SegmentIndex : std::size_t { kControl, kParameters, kGradients, kState, kNumSegments };

constexpr std::array<const char*, kNumSegments> kPurposes = {"control", "parameters", "gradients", "optimizer state"};

std::string arena_purpose(std::uint64_t arena, std::uint64_t num_workers) {
  return arena == num_workers ? "the round inputs" : cat("activations of worker ", arena);
}

ControlHeader header_for(const StoreSettings& settings, const Catalogue& catalogue) {
  ControlHeader header;
  header.num_workers = settings.num_workers;
  header.build_id = settings.build_id;
  header.fingerprint = settings.fingerprint;
  header.num_layers = static_cast<std::uint32_t>(catalogue.num_layers());
  header.num_pipelines = static_cast<std::uint32_t>(catalogue.pipelines().size());
  header.num_groups = static_cast<std::uint32_t>(catalogue.weight_groups().size());
  header.num_uses = static_cast<std::uint32_t>(catalogue.uses().size());
  header.stage_buffers = settings.stage_buffers;
  header.threads_per_worker = settings.threads_per_worker;
  header.arena_limit_bytes = settings.arena_limit_bytes;
  header.wait_timeout_ns = settings.wait_timeout_ns;
  header.weights_yield = settings.weights_yield ? 1 : 0;
  header.gradients_yield = settings.gradients_yield ? 1 : 0;
  header.checks_consistency = settings.check_consistency ? 1 : 0;
  header.is_sparse = settings.is_sparse ? 1 : 0;
  const ControlLayout layout(header);
  header.catalogue_offset = layout.catalogue;
  header.catalogue_bytes = catalogue.to_bytes().size();
  header.bytes = layout.catalogue + header.catalogue_bytes;
  return header;
}

void check_numbers(const StoreSettings& settings, const Catalogue& catalogue) {
  if (settings.num_workers < 1 || settings.num_workers > kMaxWorkers) {
    throw Error(ExitCode::kUsage,
                cat(settings.num_workers, " workers were asked for; 1 to ", kMaxWorkers, " are possible"));
  }
  if (catalogue.num_layers() < 1 || catalogue.num_layers() > kMaxLayers) {
    throw Error(ExitCode::kUsage, cat("the model has ", catalogue.num_layers(), " layers; 1 to ", kMaxLayers,
                                      " are possible; join small layers into one"));
  }
}

// Returns whether the header is consistent, and everything that it describes fits into a control
// segment of `length` bytes.
bool is_sound(const ControlHeader& header, std::uint64_t length) {
  return header.magic == kControlMagic && header.version == kControlVersion && header.bytes == length &&
         header.num_workers >= 1 && header.num_workers <= kMaxWorkers && header.num_layers <= kMaxLayers &&
         header.num_pipelines <= kMaxLayers && header.num_groups <= length && header.num_uses <= length &&
         header.catalogue_offset == ControlLayout(header).catalogue && header.catalogue_offset <= length &&
         header.catalogue_bytes == length - header.catalogue_offset;
}

std::string need_text(const StoreBytes& bytes) {
  return cat("the host store needs ", bytes_text(bytes.total()), " (parameters ", bytes_text(bytes.parameters),
             ", optimizer state ", bytes_text(bytes.state), ", gradients ", bytes_text(bytes.gradients), ")");
}

void check_memory(const StoreBytes& bytes) {
  const std::uint64_t available = available_memory();
  if (bytes.total() <= available) return;
  throw Error(ExitCode::kNoResource, cat(need_text(bytes), ", but ", bytes_text(available),
                                         " of memory are available; use a smaller model, a machine or memory limit "
                                         "with more, or --params-on and a directory on a fast disk"));
}

void check_emulated_memory(const StoreBytes& bytes, std::uint64_t emulated) {
  if (emulated == 0 || bytes.total() <= emulated) return;
  throw Error(ExitCode::kNoResource, cat(need_text(bytes), ", but the emulated machine has ", bytes_text(emulated),
                                         " of memory; use a smaller model or a machine with more"));
}

void check_disk(const StoreBytes& bytes, const std::string& directory) {
  const std::uint64_t free = free_bytes_on_disk(directory);
  if (bytes.weights() <= free) return;
  throw Error(ExitCode::kNoResource, cat("--params-on ", directory, ": ", need_text(bytes), ", but ", bytes_text(free),
                                         " are free there; make room or choose another directory"));
}

}  // namespace

StoreBytes Store::needed(const StoreSettings& settings, const Catalogue& catalogue) {
  return {.control = header_for(settings, catalogue).bytes,
          .parameters = catalogue.parameter_bytes(),
          .state = catalogue.state_bytes(),
          .gradients = catalogue.gradient_bytes()};
}

const char* store_part_name(StorePart part) {
  switch (part) {
    case StorePart::kControl: return "the control segment";
    case StorePart::kActivations: return "activations";
    case StorePart::kWeights: return "weights";
    case StorePart::kGradients: return "gradients";
  }
  return "";
}

StoreRemains StoreRemains::of(std::vector<UniqueFd> descriptors) {
  StoreRemains remains;
  if (descriptors.size() > kNumSegments) remains.journal = StepJournal::attach(std::move(descriptors.back()));
  for (std::size_t i = kParameters; i < kNumSegments; ++i)
    remains.segments.push_back(Segment::attach(std::move(descriptors[i]), kPurposes[i]));
  return remains;
}

std::uint64_t StoreRemains::allocated_bytes() const {
  std::uint64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.is_in_memory() ? segment.allocated_bytes() : 0;
  return bytes;
}

std::unique_ptr<Store> Store::create(const StoreSettings& settings, const Catalogue& catalogue) {
  return create(settings, catalogue, std::nullopt);
}

std::unique_ptr<Store> Store::create(const StoreSettings& settings, const Catalogue& catalogue, StoreRemains remains) {
  return create(settings, catalogue, std::optional(std::move(remains)));
}

std::unique_ptr<Store> Store::create(const StoreSettings& settings, const Catalogue& catalogue,
                                     std::optional<StoreRemains> remains) {
  check_numbers(settings, catalogue);
  const StoreBytes bytes = needed(settings, catalogue);
  const bool in_files = !settings.params_on.empty();
  if (settings.is_sparse) {
    check_emulated_memory(bytes, settings.emulated_memory_bytes);
  } else if (!in_files && !remains) {
    check_memory(bytes);
  }
  std::unique_ptr<Store> store(new Store);
  const SharedHugePages huge_pages = settings.is_sparse ? SharedHugePages::kNever : shared_huge_pages();
  const bool is_small = in_files || settings.is_sparse || remains;
  store->backing_ = choose_backing(settings.backing, is_small ? bytes.control : bytes.total(), huge_pages);
  store->placement_.has_huge_pages =
      !in_files && store->backing_ == Backing::kMemfd && huge_pages != SharedHugePages::kNever;
  const std::vector<int> nodes = in_files || settings.is_sparse ? std::vector<int>() : allowed_memory_nodes();
  store->placement_.num_nodes = std::max(1, static_cast<int>(nodes.size()));
  const InterleavedPages interleaved(nodes);
  const bool by_populating = !remains && store->placement_.has_huge_pages && huge_pages == SharedHugePages::kAdvised;
  store->segments_.push_back(Segment::create(store->backing_, kPurposes[kControl]));
  store->segments_.front().reserve(bytes.control);
  ControlHeader header = header_for(settings, catalogue);
  if (getrandom(header.run_id.data(), sizeof(header.run_id), 0) != sizeof(header.run_id)) {
    throw Error(ExitCode::kNoResource, "no random numbers from the kernel");
  }
  const std::vector<std::byte> text = catalogue.to_bytes();
  const ProgramIdentity identity{
      .build_id = header.build_id, .fingerprint = header.fingerprint, .catalogue = DataChecksum::of(text)};
  if (remains) {
    remains->journal->check_identity(identity);
    store->adopt(std::move(*remains), bytes);
  } else {
    store->create_segments(settings, bytes, by_populating);
    if (!settings.journal_scratch_bytes.empty()) {
      store->journal_ =
          StepJournal::create(store->backing_, identity, header.num_groups, settings.journal_scratch_bytes);
    }
  }
  store->control_ = Mapping(store->segments_[kControl], Access::kReadWrite, 0, bytes.control);
  std::memcpy(store->control_.data(), &header, sizeof(header));
  std::memcpy(store->control_.data() + header.catalogue_offset, text.data(), text.size());
  const Backing arena_backing = settings.backing == "shm" ? Backing::kShm : Backing::kMemfd;
  for (std::uint64_t i = 0; i <= settings.num_workers; ++i) {
    store->arenas_.push_back(
        std::make_unique<ArenaView>(Segment::create(arena_backing, arena_purpose(i, settings.num_workers)),
                                    settings.arena_limit_bytes, settings.is_sparse));
  }
  store->map(true);
  // All workers take part in the first epoch.
  for (int worker = 0; worker < store->num_workers(); ++worker) store->worker_words(worker).takes_part = 1;
  store->epoch().publish_begun(Epoch());
  if (by_populating) store->populate_huge_pages();
  return store;
}

// `by_populating`: the memory is reserved later, by populate_huge_pages().
void Store::create_segments(const StoreSettings& settings, const StoreBytes& bytes, bool by_populating) {
  const bool in_files = !settings.params_on.empty();
  const std::array<std::uint64_t, kNumSegments> lengths = {bytes.control, bytes.parameters, bytes.gradients,
                                                           bytes.state};
  for (std::size_t i = kParameters; i < kNumSegments; ++i) {
    segments_.push_back(in_files ? Segment::create_file(settings.params_on, kPurposes[i])
                                 : Segment::create(backing_, kPurposes[i]));
  }
  if (in_files && !settings.is_sparse)
    check_disk(bytes, settings.params_on);  // after create_file() has checked that the directory exists
  for (std::size_t i = kParameters; i < kNumSegments; ++i) {
    if (settings.is_sparse || by_populating) {
      segments_[i].lengthen(lengths[i]);
    } else {
      segments_[i].reserve(lengths[i]);
    }
  }
}

void Store::adopt(StoreRemains remains, const StoreBytes& bytes) {
  const std::array<std::uint64_t, 3> lengths = {bytes.parameters, bytes.gradients, bytes.state};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (remains.segments[i].bytes() < lengths[i])
      throw Error(ExitCode::kUserError,
                  cat("the ", remains.segments[i].purpose(), " that another process has left are too short"));
    segments_.push_back(std::move(remains.segments[i]));
  }
  journal_ = std::move(remains.journal);
}

// fallocate() ignores that a mapping requests huge pages. If the kernel provides them only on
// request, the pages must be allocated through a mapping that requests them.
void Store::populate_huge_pages() {
  for (Mapping* const mapping : {&parameters_, &gradients_, &state_}) mapping->advise_huge_pages();
  PagePopulator populator(populated_ranges(), population_threads(usable_cores()));
  if (const int error = populator.wait(); error != 0) {
    const Catalogue& catalogue = catalogue_;
    throw Error(ExitCode::kNoResource,
                cat("cannot reserve ",
                    bytes_text(catalogue.parameter_bytes() + catalogue.gradient_bytes() + catalogue.state_bytes()),
                    " of memory for weights, gradients and optimizer state: ", errno_text(error), " (",
                    bytes_text(available_memory()),
                    " are available); use a smaller model, a machine or memory limit with more, or --params-on and a "
                    "directory on a fast disk"));
  }
}

std::vector<PagePopulator::Range> Store::populated_ranges() const {
  if (header().is_sparse != 0 || !segments_[kParameters].is_in_memory()) return {};
  const PageAccess of_parameters = state_.data() == nullptr ? PageAccess::kRead : PageAccess::kWrite;
  return {{parameters_.data(), parameters_.bytes(), of_parameters},
          {state_.data(), state_.bytes(), PageAccess::kWrite},
          {gradients_.data(), gradients_.bytes(), PageAccess::kWrite}};
}

void Store::populate_ahead(int num_threads) { populator_.emplace(populated_ranges(), num_threads); }

void Store::wait_until_populated() {
  if (populator_) (void)populator_->wait();
}

std::unique_ptr<Store> Store::attach(std::vector<UniqueFd> descriptors) {
  const Error strange(ExitCode::kUserError,
                      "the memory that was handed over is no host store of this version; all processes of a run must "
                      "be the same program");
  if (descriptors.size() <= kNumSegments) throw strange;
  std::unique_ptr<Store> store(new Store);
  for (std::size_t i = 0; i < kNumSegments; ++i) {
    store->segments_.push_back(Segment::attach(std::move(descriptors[i]), kPurposes[i]));
  }
  const std::uint64_t length = store->segments_[kControl].bytes();
  if (length < sizeof(ControlHeader)) throw strange;
  store->control_ = Mapping(store->segments_[kControl], Access::kReadWrite, 0, length);
  const ControlHeader& header = store->header();
  const std::size_t num_descriptors =
      kNumSegments + header.num_workers + 1;  // and perhaps the journal, for coordinators
  if (!is_sound(header, length) || (descriptors.size() != num_descriptors && descriptors.size() != num_descriptors + 1))
    throw strange;
  for (std::uint64_t i = 0; i <= header.num_workers; ++i) {
    store->arenas_.push_back(std::make_unique<ArenaView>(
        Segment::attach(std::move(descriptors[kNumSegments + i]), arena_purpose(i, header.num_workers)),
        header.arena_limit_bytes, header.is_sparse != 0));
  }
  store->map(false);
  const Catalogue& catalogue = store->catalogue_;
  if (catalogue.num_layers() != static_cast<int>(header.num_layers) ||
      catalogue.pipelines().size() != header.num_pipelines || catalogue.weight_groups().size() != header.num_groups ||
      catalogue.uses().size() != header.num_uses) {
    throw strange;
  }
  return store;
}

void Store::map(bool is_coordinator) {
  const ControlHeader& header = this->header();
  layout_ = ControlLayout(header);
  catalogue_ = Catalogue::from_bytes({control_.data() + header.catalogue_offset, header.catalogue_bytes});
  parameters_ = Mapping(segments_[kParameters], is_coordinator ? Access::kReadWrite : Access::kReadOnly, 0,
                        catalogue_.parameter_bytes());
  gradients_ = Mapping(segments_[kGradients], Access::kReadWrite, 0, catalogue_.gradient_bytes());
  if (is_coordinator) state_ = Mapping(segments_[kState], Access::kReadWrite, 0, catalogue_.state_bytes());
  for (Mapping* const mapping : {&parameters_, &gradients_, &state_})
    keep_out_of_core_dump(mapping->data(), mapping->bytes());
  find_cuts();
}

StoreBytes Store::allocated() const {
  StoreBytes bytes{.control = segments_[kControl].allocated_bytes() + journal_bytes(),
                   .parameters = segments_[kParameters].allocated_bytes(),
                   .state = segments_[kState].allocated_bytes(),
                   .gradients = segments_[kGradients].allocated_bytes()};
  for (const auto& arena : arenas_) bytes.activations += arena->segment().allocated_bytes();
  return bytes;
}

std::vector<int> Store::descriptors() const {
  std::vector<int> result;
  for (const Segment& segment : segments_) result.push_back(segment.fd());
  for (const auto& arena : arenas_) result.push_back(arena->segment().fd());
  if (journal_) result.push_back(journal_->fd());
  return result;
}

std::byte* Store::ring_memory(std::uint64_t region, std::uint64_t bytes, int worker) {
  return control_.data() + region + align_up(bytes, 64) * static_cast<std::uint64_t>(worker);
}

WorkerWords& Store::worker_words(int worker) {
  return *reinterpret_cast<WorkerWords*>(ring_memory(layout_.worker_words, sizeof(WorkerWords), worker));
}

void Store::wake_waiters() {
  for (int worker = 0; worker < num_workers(); ++worker) {
    worker_words(worker).events.wake();
    worker_words(worker).issued.wake();
    communicator(worker).is_known.wake();
  }
  for (const GroupId group : catalogue_.weight_groups().indices()) published(group).wake();
  for (const UseId use : catalogue_.uses().indices()) gradient_released(use).wake();
  for (std::uint32_t pipeline = 0; pipeline < header().num_pipelines; ++pipeline) loss_scale(pipeline).version.wake();
}

std::span<const LiveBlock> Store::live_blocks(int worker) {
  const WorkerWords& words = worker_words(worker);
  if (words.num_live_blocks == 0) return {};
  const std::byte* const list =
      arena(kCoordinatorArena).data(words.live_blocks, words.num_live_blocks * sizeof(LiveBlock));
  return {reinterpret_cast<const LiveBlock*>(list), words.num_live_blocks};
}

EventRing& Store::event_ring(int worker) {
  return *reinterpret_cast<EventRing*>(ring_memory(layout_.event_rings, sizeof(EventRing), worker));
}

void Store::find_cuts() {
  for (const WeightGroupRecord& group : catalogue_.weight_groups()) {
    for (std::uint32_t copy = 0; copy < group.num_copies; ++copy)
      parameter_cuts_.push_back(group.parameter_offset[copy]);
  }
  for (const UseRecord& use : catalogue_.uses()) {
    if (catalogue_.weight_groups()[use.group].is_trained != 0) gradient_cuts_.push_back(use.gradient_offset);
  }
  std::sort(parameter_cuts_.begin(), parameter_cuts_.end());
  std::sort(gradient_cuts_.begin(), gradient_cuts_.end());
}

std::vector<Store::Region> Store::regions() {
  std::vector<Region> regions = {{.part = StorePart::kWeights,
                                  .fd = segments_[kParameters].fd(),
                                  .data = parameters_.data(),
                                  .bytes = parameters_.bytes(),
                                  .is_read_only = state_.data() == nullptr,
                                  .cuts = parameter_cuts_},
                                 {.part = StorePart::kGradients,
                                  .fd = segments_[kGradients].fd(),
                                  .data = gradients_.data(),
                                  .bytes = gradients_.bytes(),
                                  .cuts = gradient_cuts_}};
  for (const auto& arena : arenas_) {
    const std::span<std::byte> mapped = arena->mapped();
    regions.push_back(
        {.part = StorePart::kActivations, .fd = arena->segment().fd(), .data = mapped.data(), .bytes = mapped.size()});
  }
  return regions;
}

Store::Region Store::control() {
  return {
      .part = StorePart::kControl, .fd = segments_[kControl].fd(), .data = control_.data(), .bytes = control_.bytes()};
}

std::uint64_t Store::progress() {
  std::uint64_t sum = 0;
  for (int worker = 0; worker < num_workers(); ++worker) sum += worker_words(worker).heartbeat.observe();
  for (std::uint32_t pipeline = 0; pipeline < header().num_pipelines; ++pipeline)
    sum += update_heartbeat(pipeline).observe();
  return sum;
}

RingWriter<Command> Store::command_writer(int worker) {
  return {ring_memory(layout_.commands, ring_bytes<Command>(kCommandRing), worker), kCommandRing};
}
RingReader<Command> Store::command_reader(int worker) {
  return {ring_memory(layout_.commands, ring_bytes<Command>(kCommandRing), worker), kCommandRing};
}
RingWriter<Completion> Store::completion_writer(int worker) {
  return {ring_memory(layout_.completions, ring_bytes<Completion>(kCompletionRing), worker), kCompletionRing};
}
RingReader<Completion> Store::completion_reader(int worker) {
  return {ring_memory(layout_.completions, ring_bytes<Completion>(kCompletionRing), worker), kCompletionRing};
}
RingWriter<FreeRecord> Store::free_writer(int worker) {
  return {ring_memory(layout_.frees, ring_bytes<FreeRecord>(kFreeRing), worker), kFreeRing};
}
RingReader<FreeRecord> Store::free_reader(int worker) {
  return {ring_memory(layout_.frees, ring_bytes<FreeRecord>(kFreeRing), worker), kFreeRing};
}

ArenaView& Store::arena(std::uint64_t arena) {
  return *arenas_[arena == kCoordinatorArena ? arenas_.size() - 1 : arena];
}

}  // namespace rp
