#include "launcher/trace/run_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/files/output_file.h"
#include "common/text.h"
#include "launcher/trace/trace_json.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::size_t kNumDescriptors = 2;  // the file and the journal: the last two in a message

[[noreturn]] void throw_unwritable(const std::string& path, const std::string& why) {
  throw Error(ExitCode::kOutputFailed,
              cat("cannot write the trace ", path, ": ", why, "; choose another file for --trace"));
}

UniqueFd duplicate(const UniqueFd& fd) {
  UniqueFd copy(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy)
    throw Error(ExitCode::kNoResource, cat("cannot copy a descriptor (", errno_text(errno), "); raise ulimit -n"));
  return copy;
}

std::string path_in(const Message& message) {
  return {reinterpret_cast<const char*>(message.blob.data()), message.blob.size()};
}

bool has_trace(const Message& message) {
  return !message.blob.empty() && message.descriptors.size() >= kNumDescriptors;
}

}  // namespace

RunTrace RunTrace::open(const std::filesystem::path& file, const TraceTitle& title) {
  const std::string path = std::filesystem::absolute(file).string();
  if (path.size() > kMaxBlobBytes) throw_unwritable(path, "its name is too long");
  UniqueFd fd = open_kept_file(path, O_WRONLY, 0644, "choose another file for --trace");
  RunTrace trace(path, std::move(fd), TraceJournal::create(std::filesystem::path(path).parent_path(), title));
  trace.write();  // detects a full disk before the run
  return trace;
}

void RunTrace::append_to(Message& message) const {
  message.blob.resize(path_.size());
  std::memcpy(message.blob.data(), path_.data(), path_.size());
  message.descriptors.push_back(duplicate(file_));
  message.descriptors.emplace_back(fcntl(journal_.fd(), F_DUPFD_CLOEXEC, 3));
}

std::optional<RunTrace> RunTrace::copy_of(const Message& message) {
  if (!has_trace(message)) return std::nullopt;
  const auto last = message.descriptors.end() - 1;
  return RunTrace(path_in(message), duplicate(*(last - 1)), TraceJournal::attach(duplicate(*last)));
}

std::optional<RunTrace> RunTrace::take_from(Message& message) {
  std::optional<RunTrace> trace = copy_of(message);
  if (trace) message.descriptors.resize(message.descriptors.size() - kNumDescriptors);
  return trace;
}

void RunTrace::write() const {
  if (ftruncate(file_.get(), 0) != 0 || lseek(file_.get(), 0, SEEK_SET) != 0)
    throw_unwritable(path_, errno_text(errno));
  write_trace_json(journal_, [this](std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(file_.get(), text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_unwritable(path_, errno_text(errno));
      text.remove_prefix(written);
    }
  });
}

std::string RunTrace::write_or_warn(const char* program) const {
  try {
    write();
  } catch (const std::exception& error) {
    return cat(program, ": warning: ", error.what(), "\n");
  }
  return "";
}

}  // namespace rp
