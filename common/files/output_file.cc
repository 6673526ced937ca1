#include "common/files/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/check.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

Error output_failed(const std::filesystem::path& path, const char* what, int error_number, std::uint64_t total_bytes) {
  std::string message = cat(path.string(), ": cannot be ", what, ": ", errno_text(error_number));
  if (total_bytes > 0) message += cat(" (the file needs ", bytes_text(total_bytes), ")");
  return Error(ExitCode::kOutputFailed, message);
}

// Smaller files are not worth a buffer of their own, and are often read soon, for example
// configurations and tokenizers.
std::atomic<std::uint64_t> g_direct_bytes{std::uint64_t{16} << 20};

std::atomic<int> g_num_unfinished{0};
std::atomic<int> g_interrupted_by{0};

}  // namespace

void set_direct_writes_from(std::uint64_t bytes) { g_direct_bytes.store(bytes); }

UnfinishedOutput::UnfinishedOutput() { g_num_unfinished.fetch_add(1); }

UnfinishedOutput::~UnfinishedOutput() {
  if (counts_) g_num_unfinished.fetch_sub(1);
}

bool interrupt_unfinished_output(int signal_number) {
  if (g_num_unfinished.load() == 0) return false;
  g_interrupted_by.store(signal_number);
  return true;
}

void wait_for_unfinished_output(const Deadline& deadline) {
  while (g_num_unfinished.load() > 0 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void check_interrupted_output() {
  if (const int signal_number = g_interrupted_by.load(); signal_number != 0) throw Interrupted(signal_number);
}

OutputFile OutputFile::create(const std::filesystem::path& path, std::uint64_t total_bytes,
                              std::unique_ptr<Observer> observer, unsigned permissions) {
  UniqueFd fd(
      retry_interrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, permissions); }));
  if (!fd) throw output_failed(path, "created", errno, 0);
  // Reserve the space now, so that a full disk is detected early. On file systems that cannot
  // reserve space, a write fails later.
  if (total_bytes > 0 && fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(total_bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    const int error_number = errno;
    ::unlink(path.c_str());
    throw output_failed(path, "created", error_number, total_bytes);
  }
  return OutputFile(path, std::move(fd), total_bytes, std::move(observer));
}

OutputFile::OutputFile(std::filesystem::path path, UniqueFd fd, std::uint64_t total_bytes,
                       std::unique_ptr<Observer> observer)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      total_bytes_(total_bytes),
      observer_(std::move(observer)),
      direct_(total_bytes >= g_direct_bytes.load() ? std::make_unique<DirectWriter>(fd_.get()) : nullptr) {}

void OutputFile::write(const void* data, std::uint64_t bytes) {
  RP_ASSERT(static_cast<bool>(fd_));
  constexpr std::uint64_t kChunk = std::uint64_t{64} << 20;
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    check_interrupted_output();
    const std::uint64_t done = put(from, std::min(bytes, kChunk));
    if (observer_ != nullptr) observer_->on_write(from, done);
    from += done;
    written_ += done;
    bytes -= done;
  }
}

std::uint64_t OutputFile::put(const std::byte* data, std::uint64_t bytes) {
  if (direct_ != nullptr) {
    if (const int error = direct_->write(data, bytes); error != 0)
      throw output_failed(path_, "written", error, total_bytes_);
    return bytes;
  }
  const ssize_t done = retry_interrupted([&] { return ::write(fd_.get(), data, bytes); });
  if (done < 0) throw output_failed(path_, "written", errno, total_bytes_);
  return static_cast<std::uint64_t>(done);
}

void OutputFile::commit() {
  RP_ASSERT(static_cast<bool>(fd_));
  if (direct_ != nullptr) {
    if (const int error = direct_->finish(); error != 0) throw output_failed(path_, "written", error, total_bytes_);
  }
  if (retry_interrupted([&] { return fsync(fd_.get()); }) != 0)
    throw output_failed(path_, "synced to disk", errno, total_bytes_);
  // Network file systems report a full disk here.
  if (::close(fd_.release()) != 0) throw output_failed(path_, "closed", errno, total_bytes_);
  if (observer_ != nullptr) observer_->on_commit();
}

void replace_file(const std::filesystem::path& path, std::string_view content) {
  std::error_code failed;
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed)) {
    throw Error(ExitCode::kOutputFailed, cat(path.string(), ": is there and is not a regular file; give another name"));
  }
  const std::filesystem::path unfinished = path.string() + cat(".", getpid(), ".unfinished");
  OutputFile file = OutputFile::create(unfinished);
  try {
    file.write(content.data(), content.size());
    file.commit();
    std::filesystem::rename(unfinished, path, failed);
    if (failed) throw output_failed(path, "replaced", failed.value(), 0);
  } catch (...) {
    std::filesystem::remove(unfinished, failed);
    throw;
  }
}

UniqueFd open_kept_file(const std::filesystem::path& path, int flags, unsigned permissions, std::string_view remedy) {
  const auto refused = [&](const std::string& why) {
    return Error(ExitCode::kOutputFailed, cat(path.string(), ": cannot be opened for writing: ", why, "; ", remedy));
  };
  // Without O_NONBLOCK, a pipe without a reader would block the run here.
  flags |= O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), flags, permissions); }));
  std::error_code ignored;
  if (!fd && errno == ELOOP && std::filesystem::is_symlink(path, ignored)) throw refused("it is a link");
  if (!fd && errno == ENXIO) throw refused("it is not a regular file");
  if (!fd) throw refused(errno_text(errno));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) throw refused(errno_text(errno));
  if (!S_ISREG(status.st_mode)) throw refused("it is not a regular file");
  fcntl(fd.get(), F_SETFL, flags & O_APPEND);
  return fd;
}

UniqueFd reopen_pipe_without_waiting(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return {};
  return UniqueFd(::open(cat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
}

void sync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(retry_interrupted([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd) throw output_failed(directory, "opened", errno, 0);
  if (retry_interrupted([&] { return fsync(fd.get()); }) != 0 && errno != EINVAL)
    throw output_failed(directory, "synced to disk", errno, 0);
}

}  // namespace rp
