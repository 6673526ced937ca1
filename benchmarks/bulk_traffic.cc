#include "benchmarks/bulk_traffic.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "common/median.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "cuda/cuda_stream.h"
#include "hoststore/sequence_word.h"

namespace rp {

namespace {

constexpr std::uint64_t kRegisteredPiece = std::uint64_t{256} << 20;
constexpr std::int64_t kTimeoutNs = 60 * kNsPerSecond;

// Shared memory of the host, touched and registered, and as much memory of the GPU. One half of
// each is for copies to the GPU, the other half for copies from it.
class BothSides {
 public:
  BothSides(const CudaContext& context, std::uint64_t bytes)
      : bytes_(bytes),
        host_(map(2 * bytes)),
        pinned_(context),
        arena_(context, 2 * bytes),
        on_gpu_(arena_.allocate(2 * bytes, MemoryUse::kInputs)) {
    std::memset(host_, 1, 2 * bytes);
    for (std::uint64_t at = 0; at < 2 * bytes; at += kRegisteredPiece) {
      const std::string why = pinned_->add(host_ + at, std::min(kRegisteredPiece, 2 * bytes - at), false);
      if (!why.empty()) throw Error(ExitCode::kNoResource, cat("cannot register memory: ", why));
    }
  }
  ~BothSides() {
    pinned_.reset();
    munmap(host_, 2 * bytes_);
  }
  BothSides(const BothSides&) = delete;
  BothSides& operator=(const BothSides&) = delete;

  [[nodiscard]] CudaStream::Memory memory() const {
    return {.arena = arena_, .pinned = *pinned_, .on_unregistered = [](const std::byte*) {}};
  }
  void copy(CudaStream& stream, bool is_upload, std::uint64_t at, std::uint64_t bytes) const {
    if (is_upload) return stream.copy(on_gpu_ + at, host_ + at, bytes);
    stream.copy(host_ + bytes_ + at, on_gpu_ + bytes_ + at, bytes);
  }

 private:
  static std::byte* map(std::uint64_t bytes) {
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw Error(ExitCode::kNoResource, cat("cannot take ", bytes_text(bytes), " of memory"));
    return static_cast<std::byte*>(data);
  }

  const std::uint64_t bytes_;
  std::byte* const host_;
  std::optional<PinnedMemory> pinned_;  // unregisters before the memory is freed
  DeviceArena arena_;
  std::byte* const on_gpu_;
};

// Makes long copies in one direction on a stream of its own.
class BulkStream {
 public:
  BulkStream(const CudaContext& context, const BothSides& sides, bool is_upload)
      : context_(context),
        sides_(sides),
        is_upload_(is_upload),
        stream_(context, sides.memory(), false),
        begin_(context, CU_EVENT_DEFAULT),
        end_(context, CU_EVENT_DEFAULT) {}
  ~BulkStream() { stream_.cancel_calls(); }
  BulkStream(const BulkStream&) = delete;
  BulkStream& operator=(const BulkStream&) = delete;

  // Enqueues all pieces of a copy. Returns when the last piece is enqueued, or when `stop` is set.
  void enqueue(std::uint64_t bytes, const Pieces& pieces, bool is_traced, const std::atomic<bool>& stop) {
    for (std::uint64_t at = 0; at < bytes && !stop.load(); at += pieces.bytes) {
      if (enqueued_ >= pieces.under_way) wait_for(enqueued_ + 1 - pieces.under_way);
      if (is_traced) stream_.call(stamp, &stamps_[0]);
      sides_.copy(stream_, is_upload_, at, std::min(pieces.bytes, bytes - at));
      if (is_traced) stream_.call(stamp, &stamps_[1]);
      stream_.signal(done_, ++enqueued_);
    }
  }

  // Returns the GB/s of one long copy, by the GPU's events.
  double speed(std::uint64_t bytes, const Pieces& pieces, bool is_traced) {
    static const std::atomic<bool> never{false};
    record(begin_);
    enqueue(bytes, pieces, is_traced, never);
    record(end_);
    drain();
    float ms = 0;
    context_.check(context_.driver().event_elapsed_time(&ms, begin_.get(), end_.get()), "reading the time of a copy");
    return static_cast<double>(bytes) / (static_cast<double>(ms) * 1e6);
  }

  void drain() {
    if (enqueued_ > 0) wait_for(enqueued_);
    stream_.drain();
  }

 private:
  static void stamp(void* place) { *static_cast<std::int64_t*>(place) = now_ns(); }

  void wait_for(std::uint64_t piece) const {
    static const std::atomic<bool> never{false};
    if (done_.wait_at_least(piece, {&never, kTimeoutNs}) == WaitResult::kReached) return;
    throw Error(ExitCode::kHang, "a copy did not end within 60 s");
  }

  void record(const CudaEventHandle& event) const {
    context_.make_current();
    context_.check(context_.driver().event_record(event.get(), stream_.get()), "recording an event");
  }

  const CudaContext& context_;
  const BothSides& sides_;
  const bool is_upload_;
  CudaStream stream_;
  const CudaEventHandle begin_, end_;
  std::int64_t stamps_[2] = {};  // writer: the driver's thread
  SequenceWord done_{};          // writer: the stream. The number of pieces that were copied
  std::uint64_t enqueued_ = 0;
};

// Runs `body` in a thread of its own. join() throws what `body` has thrown.
class Beside {
 public:
  template <typename Body>
  explicit Beside(Body body)
      : thread_([this, body] {
          try {
            body();
          } catch (...) {
            failure_ = std::current_exception();
          }
        }) {}
  ~Beside() {
    if (thread_.joinable()) thread_.join();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
  std::thread thread_;
};

// Returns the speed of one direction alone, or the mean of both directions in use at the same time.
double speed_of(const std::string& direction, BulkStream& up, BulkStream& down, std::uint64_t bytes,
                const Pieces& pieces, bool is_traced) {
  if (direction == "up") return up.speed(bytes, pieces, is_traced);
  if (direction == "down") return down.speed(bytes, pieces, is_traced);
  double of_up = 0;
  Beside other([&] { of_up = up.speed(bytes, pieces, is_traced); });
  const double of_down = down.speed(bytes, pieces, is_traced);
  other.join();
  return (of_up + of_down) / 2;
}

// Makes urgent copies one after the other and times each. Returns the times sorted.
std::vector<double> urgent_us(const CudaContext& context, CudaStream& stream, int count, const auto& enqueue) {
  const CudaEventHandle done(context);
  std::mt19937 random(1);
  std::vector<double> us;
  for (int i = 0; i < count; ++i) {
    // Random pauses, so that there is no fixed distance from the pieces.
    sleep_until_ns(now_ns() + static_cast<std::int64_t>(random() % 2'000'000));
    const std::int64_t begin = now_ns();
    enqueue();
    context.check(context.driver().event_record(done.get(), stream.get()), "recording an event");
    CUresult result = CUDA_SUCCESS;
    while ((result = context.driver().event_query(done.get())) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    context.check(result, "waiting for a copy");
    us.push_back(static_cast<double>(now_ns() - begin) / 1000.0);
  }
  std::sort(us.begin(), us.end());
  return us;
}

// Returns the times of urgent copies in one direction while long copies run in the same direction.
// Without `pieces` there are no long copies.
std::vector<double> delays(const CudaContext& context, const BothSides& sides, const BulkSettings& settings,
                           bool is_upload, const std::optional<Pieces>& pieces) {
  BulkStream bulk(context, sides, is_upload);
  CudaStream urgent(context, sides.memory(), true);
  const std::uint64_t bytes = is_upload ? settings.input_bytes : settings.page_bytes;
  const auto enqueue = [&] { sides.copy(urgent, is_upload, 0, bytes); };
  if (!pieces) return urgent_us(context, urgent, settings.num_urgent, enqueue);
  std::atomic<bool> stop{false};
  Beside traffic([&] {
    while (!stop.load()) bulk.enqueue(settings.bytes, *pieces, false, stop);
    bulk.drain();
  });
  std::vector<double> us;
  try {
    us = urgent_us(context, urgent, settings.num_urgent, enqueue);
  } catch (...) {
    stop.store(true);
    throw;
  }
  stop.store(true);
  traffic.join();
  return us;
}

}  // namespace

std::vector<BulkSpeed> measure_bulk_speeds(const CudaDriver& driver, const BulkSettings& settings) {
  const CudaContext context = CudaContext::open(driver, "");
  const BothSides sides(context, settings.bytes);
  BulkStream up(context, sides, true), down(context, sides, false);
  std::vector<BulkSpeed> speeds;
  const auto measure = [&](const std::string& direction, const Pieces& pieces, bool is_cut, bool is_traced) {
    std::vector<double> gbs;
    for (int round = 0; round < settings.rounds; ++round)
      gbs.push_back(speed_of(direction, up, down, settings.bytes, pieces, is_traced));
    speeds.push_back(
        {.direction = direction, .pieces = pieces, .is_cut = is_cut, .is_traced = is_traced, .gbs = median(gbs)});
  };
  for (const char* direction : {"up", "down", "both"}) {
    (void)speed_of(direction, up, down, settings.bytes, {}, false);  // wakes up the link of an idle card
    measure(direction, {.bytes = settings.bytes, .under_way = 2}, false, false);
    for (const bool is_traced : {false, true}) {
      for (const std::uint64_t bytes : settings.piece_bytes) {
        for (const std::uint64_t under_way : settings.under_way)
          measure(direction, {bytes, under_way}, true, is_traced);
      }
    }
  }
  return speeds;
}

std::vector<UrgentDelay> measure_urgent_delays(const CudaDriver& driver, const BulkSettings& settings) {
  const CudaContext context = CudaContext::open(driver, "");
  const BothSides sides(context, settings.bytes);
  const std::vector<std::pair<const char*, std::optional<Pieces>>> traffics = {
      {"idle", std::nullopt}, {"yields", Pieces{}}, {"uncut", Pieces{.bytes = settings.bytes, .under_way = 2}}};
  std::vector<UrgentDelay> result;
  for (const auto& [name, pieces] : traffics) {
    const std::vector<double> input = delays(context, sides, settings, true, pieces);
    const std::vector<double> page = delays(context, sides, settings, false, pieces);
    result.push_back({.traffic = name,
                      .input_us = median(input),
                      .page_us = median(page),
                      .longest_input_us = input.back(),
                      .longest_page_us = page.back()});
  }
  return result;
}

}  // namespace rp
