// common/files/output_file.h
// Writes files that must be on disk before any process relies on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "common/files/direct_writer.h"
#include "common/system/clock.h"
#include "common/system/fd.h"

namespace rp {

// Writes a new file from its beginning to its end. Every failure throws rp::Error (kOutputFailed)
// with the path, the system's reason and, if `total_bytes` was given, the space that the whole file
// needs. Without commit() a file is incomplete: the caller must remove it, or the directory that
// contains it (see OutputDirectory). A large file is written without the page cache, so up to 4 MiB
// of it reach the disk only in commit().
class OutputFile {
 public:
  // Receives what is written, for a checksum.
  class Observer {
   public:
    virtual ~Observer() = default;
    // Called in order; `data` is valid only during the call.
    virtual void on_write(const void* data, std::uint64_t bytes) = 0;
    // Called when the file is complete and on disk.
    virtual void on_commit() = 0;
  };

  static constexpr unsigned kAnyonesPermissions = 0666;  // minus the process's umask, like all permissions
  static constexpr unsigned kOwnersPermissions = 0600;

  // Fails if the file exists.
  static OutputFile create(const std::filesystem::path& path, std::uint64_t total_bytes = 0,
                           std::unique_ptr<Observer> observer = nullptr, unsigned permissions = kAnyonesPermissions);

  // Also throws Interrupted, after interrupt_unfinished_output().
  void write(const void* data, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes_written() const { return written_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  // Calls fsync and close. A failed fsync is never repeated, because the kernel may have dropped
  // the data.
  void commit();

 private:
  OutputFile(std::filesystem::path path, UniqueFd fd, std::uint64_t total_bytes, std::unique_ptr<Observer> observer);

  // Writes some of the bytes, at least one. Returns how many.
  [[nodiscard]] std::uint64_t put(const std::byte* data, std::uint64_t bytes);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t total_bytes_;
  std::uint64_t written_ = 0;
  std::unique_ptr<Observer> observer_;    // or null
  std::unique_ptr<DirectWriter> direct_;  // for a large file, otherwise null
};

// For tests: files of at least this size are written without the page cache, instead of those of at
// least 16 MiB.
void set_direct_writes_from(std::uint64_t bytes);

// Exists from before something half-written is on disk until its owner's destructor has removed it.
// The process counts these objects.
class UnfinishedOutput {
 public:
  UnfinishedOutput();
  UnfinishedOutput(UnfinishedOutput&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  UnfinishedOutput& operator=(UnfinishedOutput&&) = delete;
  ~UnfinishedOutput();

 private:
  bool counts_ = true;
};

// If something half-written is on disk, makes every later OutputFile::write() of this process throw
// Interrupted, so that the exception makes its owner remove it. Returns false if there is nothing
// half-written. Async-signal-safe.
[[nodiscard]] bool interrupt_unfinished_output(int signal_number);

// Throws Interrupted once interrupt_unfinished_output() has returned true.
void check_interrupted_output();

// Blocks until nothing half-written is on disk, for example while several threads remove their
// output, or until the deadline.
void wait_for_unfinished_output(const Deadline& deadline);

// Writes a small file as a whole and replaces an existing one: a reader finds either the old
// content or the new one. Throws rp::Error (kOutputFailed), also if `path` exists and is not a
// regular file.
void replace_file(const std::filesystem::path& path, std::string_view content);

// Opens or creates a file that outlives the run, such as a log. `flags` and `permissions` are those
// of open(2). Never follows a link in the file's place, never opens a pipe or device, and never
// blocks. Throws rp::Error (kOutputFailed) with the path, the system's reason and `remedy`.
[[nodiscard]] UniqueFd open_kept_file(const std::filesystem::path& path, int flags, unsigned permissions,
                                      std::string_view remedy);

// Opens the pipe behind a descriptor again, for writing without blocking: a full pipe fails with
// EAGAIN. Unlike fcntl(), this does not affect others that have the pipe open. Returns nothing if
// the descriptor is not a pipe.
[[nodiscard]] UniqueFd reopen_pipe_without_waiting(int fd);

// Makes the names in a directory permanent. Throws rp::Error (kOutputFailed). Does nothing on file
// systems that cannot sync a directory (EINVAL).
void sync_directory(const std::filesystem::path& directory);

}  // namespace rp
