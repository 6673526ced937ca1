#include "benchmarks/store_bandwidth.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "common/median.h"
#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "cuda/cuda_stream.h"
#include "cuda/pinned_store.h"

namespace rp {

namespace {

// The largest piece into which the transfer engine cuts bulk copies.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kNumLayers = 8;

std::unique_ptr<Store> make_store(const StoreBandwidthSettings& settings) {
  StoreSettings store;
  store.backing = settings.backing;
  store.num_workers = 1;
  store.arena_limit_bytes = std::uint64_t{16} << 20;  // no activations
  std::vector<LayerRequest> layers;
  for (std::uint64_t i = 0; i < kNumLayers; ++i) {
    LayerRequest layer{.name = cat("layer", i)};
    layer.parameters.push_back(
        {.name = "w", .shape = {static_cast<std::int64_t>(settings.bytes / kNumLayers / sizeof(float))}});
    layers.push_back(std::move(layer));
  }
  return Store::create(store, Catalogue::lay_out(layers, 1, false));
}

class PinnedBuffer {
 public:
  PinnedBuffer(const CudaContext& context, std::uint64_t bytes) : context_(context) {
    context.make_current();
    void* data = nullptr;
    context.check(context.driver().mem_host_alloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE),
                  "taking plain pinned memory");
    data_ = static_cast<std::byte*>(data);
    std::memset(data_, 1, bytes);
  }
  ~PinnedBuffer() { (void)context_.driver().mem_free_host(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  const CudaContext& context_;
  std::byte* data_ = nullptr;
};

// The copies in one direction with one kind of memory.
struct Path {
  CudaStream* stream = nullptr;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  bool is_plain = false;  // one call of the driver instead of a worker's pieces
};

class Measure {
 public:
  Measure(const CudaContext& context, std::uint64_t bytes)
      : context_(context),
        bytes_(bytes),
        begin_{CudaEventHandle(context, CU_EVENT_DEFAULT), CudaEventHandle(context, CU_EVENT_DEFAULT)},
        end_{CudaEventHandle(context, CU_EVENT_DEFAULT), CudaEventHandle(context, CU_EVENT_DEFAULT)} {}

  // Returns the GB/s of each path while all of them are in use.
  std::vector<double> run(const std::vector<Path>& paths) {
    for (std::size_t i = 0; i < paths.size(); ++i) record(begin_[i], paths[i]);
    // The paths take turns piece by piece, so that both directions begin together.
    for (std::uint64_t at = 0; at < bytes_; at += kPieceBytes) {
      for (const Path& path : paths) enqueue(path, at);
    }
    for (std::size_t i = 0; i < paths.size(); ++i) record(end_[i], paths[i]);
    std::vector<double> result;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      paths[i].stream->drain();
      float ms = 0;
      context_.check(context_.driver().event_elapsed_time(&ms, begin_[i].get(), end_[i].get()),
                     "reading the time of a copy");
      result.push_back(static_cast<double>(bytes_) / (static_cast<double>(ms) * 1e6));
    }
    return result;
  }

 private:
  void record(const CudaEventHandle& event, const Path& path) const {
    context_.make_current();
    context_.check(context_.driver().event_record(event.get(), path.stream->get()), "recording an event");
  }

  void enqueue(const Path& path, std::uint64_t at) const {
    const std::uint64_t piece = std::min(kPieceBytes, bytes_ - at);
    if (!path.is_plain) return path.stream->copy(path.to + at, path.from + at, piece);
    if (at > 0) return;
    context_.check(context_.driver().memcpy_async(reinterpret_cast<CUdeviceptr>(path.to),
                                                  reinterpret_cast<CUdeviceptr>(path.from), bytes_, path.stream->get()),
                   "enqueueing a copy");
  }

  const CudaContext& context_;
  const std::uint64_t bytes_;
  const CudaEventHandle begin_[2], end_[2];
};

// Samples by what was measured and by the kind of memory.
using Samples = std::map<std::pair<std::string, std::string>, std::vector<double>>;

std::vector<StoreBandwidth> figures(const Samples& samples, const char* store) {
  std::vector<StoreBandwidth> result;
  for (const char* what : {"up", "down", "both_up", "both_down"}) {
    const auto of = [&](const char* kind) {
      const auto found = samples.find({what, kind});
      return found == samples.end() ? 0 : median(found->second);
    };
    result.push_back({.what = what,
                      .store = store,
                      .store_gbs = of("store"),
                      .pinned_gbs = of("pinned"),
                      .staged_gbs = of("staged")});
  }
  return result;
}

}  // namespace

std::vector<StoreBandwidth> measure_store_bandwidth(const CudaDriver& driver, const StoreBandwidthSettings& settings) {
  const std::uint64_t bytes = settings.bytes;
  const CudaContext context = CudaContext::open(driver, "");
  const std::unique_ptr<Store> store = make_store(settings);
  std::memset(store->parameters(0), 5, bytes);
  const std::unique_ptr<Store> view = attached_view(*store);
  DeviceArena arena(context, 2 * bytes);
  PinnedMemory registered(context), none(context);
  PinnedStore pinned_store(registered, *view,
                           [](const std::string& line) { std::cerr << "gpu_store_bandwidth: " << line << "\n"; });
  pinned_store.wait_until_through();
  const PinnedBuffer plain_up(context, bytes), plain_down(context, bytes);
  const auto is_noticed = [](const std::byte*) {};
  const CudaStream::Memory of_store{.arena = arena, .pinned = registered, .on_unregistered = is_noticed};
  const CudaStream::Memory of_none{.arena = arena, .pinned = none, .on_unregistered = is_noticed};
  CudaStream up(context, of_store, false), down(context, of_store, false), staged_up(context, of_none, false),
      staged_down(context, of_none, false);
  std::byte* const on_gpu = arena.allocate(2 * bytes, MemoryUse::kInputs);

  const std::byte* const weights = std::as_const(*view).parameters(0);
  std::byte* const gradients = view->gradients(0);
  const std::map<std::string, std::pair<Path, Path>> kinds = {
      {"store", {{&up, on_gpu, weights}, {&down, gradients, on_gpu}}},
      {"pinned", {{&up, on_gpu + bytes, plain_up.data(), true}, {&down, plain_down.data(), on_gpu + bytes, true}}},
      {"staged", {{&staged_up, on_gpu, weights}, {&staged_down, gradients, on_gpu}}}};
  Measure measure(context, bytes);
  Samples samples;
  for (int round = -1; round < settings.rounds; ++round) {  // the first round is a warm-up
    for (const auto& [kind, paths] : kinds) {
      const double upload = measure.run({paths.first})[0];
      const double download = measure.run({paths.second})[0];
      const bool has_both = kind != "staged";
      const std::vector<double> both = has_both ? measure.run({paths.first, paths.second}) : std::vector<double>{};
      if (round < 0) continue;
      samples[{"up", kind}].push_back(upload);
      samples[{"down", kind}].push_back(download);
      if (has_both) samples[{"both_up", kind}].push_back(both[0]);
      if (has_both) samples[{"both_down", kind}].push_back(both[1]);
    }
  }
  if (std::memcmp(view->gradients(0), weights, bytes) != 0 ||
      std::memcmp(plain_down.data(), plain_up.data(), bytes) != 0) {
    throw Error(ExitCode::kUserError, "a copy to the GPU and back brought other bytes");
  }
  return figures(samples, backing_name(store->backing()));
}

}  // namespace rp
