#include "planner/timeline/trace_events.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>
#include <utility>
#include <vector>

#include "common/bad_input.h"
#include "common/files/input_file.h"

namespace rp {

namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kMaxTokenBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr double kMaxMicroseconds = 1e15;  // 31 years
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;

// Reads a file as a stream, in pieces. Throws if the parser makes no progress for more than
// kMaxTokenBytes, so that no text can fill the memory.
class PieceBuffer : public std::streambuf {
 public:
  explicit PieceBuffer(const InputFile& file) : file_(file), piece_(std::size_t{64} << 10) {}

  // Notes that the parser has recognised a token.
  void note_progress() { understood_ = next_; }

 protected:
  int_type underflow() override {
    if (next_ == file_.size()) return traits_type::eof();
    if (next_ - understood_ > kMaxTokenBytes)
      throw bad_input(file_.path(), "has a text of more than 1 MiB before its byte ", next_);
    const std::uint64_t bytes = std::min<std::uint64_t>(piece_.size(), file_.size() - next_);
    file_.read_at(next_, piece_.data(), bytes);
    next_ += bytes;
    setg(piece_.data(), piece_.data(), piece_.data() + bytes);
    return traits_type::to_int_type(*gptr());
  }

 private:
  const InputFile& file_;
  std::vector<char> piece_;
  std::uint64_t next_ = 0, understood_ = 0;
};

constexpr std::array<std::pair<const char*, std::string TraceEvent::*>, 2> kTexts = {
    {{"name", &TraceEvent::name}, {"cat", &TraceEvent::category}}};
constexpr std::array<std::pair<const char*, double TraceEvent::*>, 2> kTimes = {
    {{"ts", &TraceEvent::start_us}, {"dur", &TraceEvent::duration_us}}};

// Receives the parser's callbacks. Levels: 1 the file's object, 2 the list of events, 3 an event, 4
// its args.
class Handler {
 public:
  Handler(const InputFile& file, PieceBuffer& buffer, const std::function<void(const TraceEvent&)>& take)
      : file_(file), buffer_(buffer), take_(take) {}

  bool null() { return other("null"); }
  bool boolean(bool) { return other("true or false"); }
  bool number_integer(std::int64_t value) { return number(static_cast<double>(value), value); }
  bool number_unsigned(std::uint64_t value) {
    return number(static_cast<double>(value), value > INT64_MAX ? kMaxNumber + 1 : static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string&) {
    // Whole numbers may be written as floating-point numbers.
    const bool is_whole = std::abs(value) <= static_cast<double>(kMaxNumber) &&
                          value == static_cast<double>(static_cast<std::int64_t>(value));
    return number(value, is_whole ? static_cast<std::int64_t>(value) : kMaxNumber + 1);
  }
  bool string(std::string& value) {
    if (!at_event()) return other("a text");
    buffer_.note_progress();
    if (level_ == 3 && key_ == "ph") is_complete_ = value == "X";
    if (level_ != 3) return true;
    for (const auto& [name, member] : kTexts) {
      if (key_ == name) event_.*member = value;
    }
    return true;
  }
  bool binary(std::vector<std::uint8_t>&) { return false; }

  bool start_object(std::size_t) {
    if (level_ == 2 && in_events_) {
      event_ = TraceEvent{.number = num_events_++};
      is_complete_ = false;
      has_.fill(false);
    } else if (level_ == 3 && in_events_) {
      in_arguments_ = key_ == "args";
    }
    return open();
  }
  bool key(std::string& name) {
    buffer_.note_progress();
    key_ = std::move(name);
    return true;
  }
  bool end_object() {
    if (level_ == 3 && in_events_ && is_complete_) finish_event();
    if (level_ == 4) in_arguments_ = false;
    return close();
  }
  bool start_array(std::size_t) {
    if (level_ == 0) fail("is not a JSON object with the list \"traceEvents\"");
    if (level_ == 2 && in_events_) return other("a list");
    if (level_ == 1 && key_ == "traceEvents") {
      if (has_events_) fail("has the key \"traceEvents\" twice");
      has_events_ = in_events_ = true;
    }
    return open();
  }
  bool end_array() {
    if (level_ == 2) in_events_ = false;
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    if (position >= file_.size()) fail("ends in the middle of its JSON; is it being written, or was its run cut off?");
    fail("is not valid JSON at its byte ", position);
  }

  void finish() const {
    if (!has_events_) fail("lacks the list \"traceEvents\"; rp-launch --trace writes one");
  }

 private:
  template <typename... Pieces>
  [[noreturn]] void fail(const Pieces&... pieces) const {
    throw bad_input(file_.path(), pieces...);
  }
  template <typename... Pieces>
  [[noreturn]] void fail_event(const Pieces&... pieces) const {
    fail("event ", event_.number, event_.name.empty() ? "" : " (" + quoted_name(event_.name) + ")", " ", pieces...);
  }

  bool open() {
    buffer_.note_progress();
    if (++level_ > kMaxDepth) fail("is more than ", kMaxDepth, " levels deep");
    return true;
  }
  bool close() {
    buffer_.note_progress();
    --level_;
    return true;
  }
  [[nodiscard]] bool at_event() const { return in_events_ && (level_ == 3 || (level_ == 4 && in_arguments_)); }

  bool other(const char* what) {
    buffer_.note_progress();
    if (level_ == 0) fail("is not a JSON object with the list \"traceEvents\"");
    if (level_ == 2 && in_events_) fail("event ", num_events_, " is ", what, "; it must be an object");
    return true;
  }

  bool number(double value, std::int64_t whole) {
    if (!at_event()) return other("a number");
    buffer_.note_progress();
    const auto check = [&](bool good, const char* what) {
      if (!good) fail_event("has \"", key_, "\" ", value, "; it must be ", what);
    };
    if (level_ == 4) {
      if (key_ != "step") return true;
      check(whole >= -1 && whole <= kMaxNumber, "a whole number, -1 or more");
      event_.step = whole;
      return true;
    }
    if (key_ == "pid") {
      check(whole >= 0 && whole <= kMaxNumber, "a whole number, 0 or more");
      event_.pid = whole;
    }
    for (std::size_t i = 0; i < kTimes.size(); ++i) {
      if (key_ != kTimes[i].first) continue;
      check(std::abs(value) <= kMaxMicroseconds && (i == 0 || value >= 0), "a time in microseconds");
      event_.*kTimes[i].second = value;
      has_[i] = true;
    }
    return true;
  }

  void finish_event() {
    if (event_.pid < 0) fail_event("lacks the number \"pid\"");
    for (std::size_t i = 0; i < kTimes.size(); ++i) {
      if (!has_[i]) fail_event("lacks the number \"", kTimes[i].first, "\"");
    }
    take_(event_);
  }

  const InputFile& file_;
  PieceBuffer& buffer_;
  const std::function<void(const TraceEvent&)>& take_;
  int level_ = 0;
  std::string key_;
  bool has_events_ = false, in_events_ = false, in_arguments_ = false;
  std::uint64_t num_events_ = 0;
  TraceEvent event_;
  bool is_complete_ = false;
  std::array<bool, kTimes.size()> has_{};  // kTimes
};

}  // namespace

void read_trace_events(const std::filesystem::path& path, const std::function<void(const TraceEvent&)>& take) {
  const InputFile file = InputFile::open(path);
  if (file.size() > kMaxTraceBytes) {
    throw bad_input(path, "has ", bytes_text(file.size()), "; at most ", bytes_text(kMaxTraceBytes),
                    " are read: trace fewer steps");
  }
  PieceBuffer buffer(file);
  std::istream stream(&buffer);
  stream.exceptions(std::ios::badbit);
  Handler handler(file, buffer, take);
  json::sax_parse(stream, &handler);
  handler.finish();
}

}  // namespace rp
