#include "launcher/trace/trace_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/text.h"
#include "launcher/trace/json_text.h"
#include "launcher/trace/trace_event.h"

namespace rp {

namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

// Identifies a track by process and track number. In the JSON these are pid and tid.
using TrackName = std::pair<std::uint32_t, std::uint32_t>;

// Identifies something that was produced once: a block, or a version of a weight group.
using FlowKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
// The event that wrote the block or weights to the host store: the begin of a flow.
struct Producer {
  TrackName track;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The key of a block. Slots are not negative, so it differs from every key of weights.
FlowKey block_key(std::int64_t slot, std::int64_t kind, std::int64_t index, std::int64_t microbatch) {
  return {slot, kind, index, microbatch};
}
// The key of a version of a weight group.
FlowKey weights_key(std::int64_t group, std::int64_t version) { return {-1, group, version, 0}; }

class TraceText {
 public:
  TraceText(const TraceJournal& journal, const std::function<void(std::string_view)>& write)
      : journal_(journal), write_(write) {}

  void write_all() {
    for (const TraceJournal::Piece& piece : journal_.pieces()) tracks_[{piece.process, piece.track}].push_back(piece);
    for (const auto& [track, pieces] : tracks_) look_at(track, pieces);
    std::sort(producers_.begin(), producers_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    write_head();
    for (const auto& [track, _] : tracks_) write_track_name(track);
    for (const auto& [track, pieces] : tracks_) write_track(track, pieces);
    out_.raw("\n]}\n");
    flush();
  }

 private:
  using Pieces = std::vector<TraceJournal::Piece>;

  void look_at(const TrackName& track, const Pieces& pieces) {
    for (const TraceJournal::Piece& piece : pieces) {
      for (const TraceRecord& r : journal_.records(piece)) {
        first_ns_ = std::min(first_ns_, r.begin_ns);
        const Producer producer{.track = track, .begin_ns = r.begin_ns, .end_ns = r.end_ns};
        if (r.kind == TraceKind::kDownloadOutput) {
          producers_.emplace_back(block_key(r.slot, r.detail, r.first_layer, r.microbatch), producer);
        } else if (r.kind == TraceKind::kUpdate && r.numbers[2] >= 0) {
          producers_.emplace_back(weights_key(r.numbers[2], r.numbers[1]), producer);
        }
      }
    }
  }

  void write_head() {
    const TraceTitle title = journal_.title();
    out_.raw("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":").string(title.program);
    out_.field("version", RP_VERSION).field("workers", title.num_workers).field("device", title.device);
    out_.field("clock", "CLOCK_MONOTONIC").field("first_ns", tracks_.empty() ? 0 : first_ns_);
    out_.raw(journal_.is_full() ? ",\"is_complete\":false" : ",\"is_complete\":true");
    out_.field("dropped", static_cast<std::int64_t>(journal_.num_dropped())).raw("},\n\"traceEvents\":[\n");
    for (int process = 0; process <= title.num_workers; ++process) write_process_name(process);
  }

  void write_metadata(const char* what, std::int64_t pid, std::int64_t tid, std::string_view key) {
    begin_event();
    out_.raw("{\"ph\":\"M\"")
        .field("pid", pid)
        .field("tid", tid)
        .field("name", what)
        .raw(",\"args\":{\"")
        .raw(key)
        .raw("\":");
  }

  void write_process_name(int process) {
    write_metadata("process_name", process, 0, "name");
    out_.string(process == 0 ? "coordinator" : cat("worker ", process - 1)).raw("}}");
    write_metadata("process_sort_index", process, 0, "sort_index");
    out_.number(process).raw("}}");
  }

  static std::string track_text(const TrackName& track) {
    static constexpr std::array<const char*, 10> kOfWorker = {"",
                                                              "compute",
                                                              "upload inputs",
                                                              "upload weights",
                                                              "download",
                                                              "weight uploader waits",
                                                              "input uploader waits",
                                                              "stage runner waits",
                                                              "gradient downloader waits",
                                                              "download gradients"};
    const auto& [process, number] = track;
    if (process > 0) return number < kOfWorker.size() ? kOfWorker[number] : "track";
    if (number == static_cast<std::uint32_t>(CoordinatorTrack::kCaller)) return "caller";
    if (number == static_cast<std::uint32_t>(CoordinatorTrack::kCommit)) return "commit";
    return cat("updates ", number - static_cast<std::uint32_t>(CoordinatorTrack::kUpdates));
  }

  void write_track_name(const TrackName& track) {
    write_metadata("thread_name", track.first, track.second, "name");
    out_.string(track_text(track)).raw("}}");
    write_metadata("thread_sort_index", track.first, track.second, "sort_index");
    out_.number(track.second).raw("}}");
  }

  // Sorts the events so that an event comes before those that it encloses, although it was recorded
  // after them.
  void write_track(const TrackName& track, const Pieces& pieces) {
    std::vector<TraceRecord> records;
    for (const TraceJournal::Piece& piece : pieces) {
      const std::vector<TraceRecord> more = journal_.records(piece);
      records.insert(records.end(), more.begin(), more.end());
    }
    std::stable_sort(records.begin(), records.end(), [](const TraceRecord& a, const TraceRecord& b) {
      return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
    });
    for (const TraceRecord& r : records) {
      if (trace_category(r.kind) == nullptr || r.end_ns < r.begin_ns) continue;
      write_event(track, r);
      write_flow(track, r);
    }
  }

  void write_event(const TrackName& track, const TraceRecord& r) {
    begin_event();
    out_.raw("{\"ph\":\"X\"")
        .field("pid", track.first)
        .field("tid", track.second)
        .raw(",\"ts\":")
        .time(r.begin_ns - first_ns_);
    out_.raw(",\"dur\":")
        .time(r.end_ns - r.begin_ns)
        .field("cat", trace_category(r.kind))
        .field("name", trace_event_name(r));
    out_.raw(",\"args\":{\"pipeline\":").number(r.pipeline);
    add_trace_arguments(out_, r);
    out_.raw("}}");
  }

  // Writes an arrow from the producer of the block or weights that this record uploaded.
  void write_flow(const TrackName& track, const TraceRecord& r) {
    FlowKey key;
    if (r.kind == TraceKind::kUploadInput && r.numbers[1] >= 0) {
      key = block_key(r.numbers[1], r.numbers[2], r.numbers[3], r.microbatch);
    } else if (r.kind == TraceKind::kUploadWeights) {
      key = weights_key(r.numbers[2], r.numbers[1]);
    } else {
      return;
    }
    const auto is_before = [](const auto& producer, const FlowKey& wanted) { return producer.first < wanted; };
    const auto found = std::lower_bound(producers_.begin(), producers_.end(), key, is_before);
    if (found == producers_.end() || found->first != key) return;  // initial weights, or the producer's record is lost
    const Producer& producer = found->second;
    const char* name = r.kind == TraceKind::kUploadInput ? "data" : "weights";
    ++num_flows_;
    // An arrow belongs to the event that encloses its time, and the end of an event is outside of
    // it.
    write_flow_end("s", name, producer.track, std::max(producer.begin_ns, producer.end_ns - 1));
    write_flow_end("f", name, track, r.begin_ns);
  }

  void write_flow_end(const char* end, const char* name, const TrackName& track, std::int64_t time_ns) {
    begin_event();
    out_.raw("{\"ph\":\"").raw(end).raw(*end == 'f' ? "\",\"bp\":\"e\"" : "\"").field("id", num_flows_);
    out_.field("pid", track.first).field("tid", track.second).raw(",\"ts\":").time(time_ns - first_ns_);
    out_.field("cat", "flow").field("name", name).raw("}");
  }

  void flush() {
    write_(out_.text());
    out_.clear();
  }

  void begin_event() {
    if (out_.size() >= kFlushBytes) flush();
    if (!is_first_) out_.raw(",\n");
    is_first_ = false;
  }

  const TraceJournal& journal_;
  const std::function<void(std::string_view)>& write_;
  std::map<TrackName, Pieces> tracks_;
  std::vector<std::pair<FlowKey, Producer>> producers_;  // sorted
  std::int64_t first_ns_ = INT64_MAX;
  std::int64_t num_flows_ = 0;
  bool is_first_ = true;
  JsonText out_;
};

}  // namespace

void write_trace_json(const TraceJournal& journal, const std::function<void(std::string_view)>& write) {
  TraceText(journal, write).write_all();
}

}  // namespace rp
