// common/files/output_file.h
// A file that we write and that must be on disk before anybody relies on it.
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

// Writes a new file from its beginning to its end. Every failure throws rp::Error (kOutputFailed) with the path, the
// system's reason and, where `total_bytes` was given, the space that the whole file needs. A file without commit() is
// incomplete: remove it, or the directory it lies in (see OutputDirectory). A large file is written past the page
// cache, so that up to 4 MiB of it lie on disk only after commit().
class OutputFile {
 public:
  // Sees what is written, for a checksum.
  class Observer {
   public:
    virtual ~Observer() = default;
    // In order; `data` holds only during the call.
    virtual void on_write(const void* data, std::uint64_t bytes) = 0;
    // The file is complete and on disk.
    virtual void on_commit() = 0;
  };

  static constexpr unsigned kAnyonesPermissions = 0666;  // less the process's umask, as all permissions

  // Fails if the file exists.
  static OutputFile create(const std::filesystem::path& path, std::uint64_t total_bytes = 0,
                           std::unique_ptr<Observer> observer = nullptr, unsigned permissions = kAnyonesPermissions);

  // Throws Interrupted, too: interrupt_unfinished_output().
  void write(const void* data, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes_written() const { return written_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  // fsync and close. An fsync that failed is never tried again: the kernel may have dropped the data by then.
  void commit();

 private:
  OutputFile(std::filesystem::path path, UniqueFd fd, std::uint64_t total_bytes, std::unique_ptr<Observer> observer);

  // Writes some of the bytes, at least one; returns how many.
  [[nodiscard]] std::uint64_t put(const std::byte* data, std::uint64_t bytes);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t total_bytes_;
  std::uint64_t written_ = 0;
  std::unique_ptr<Observer> observer_;    // or null
  std::unique_ptr<DirectWriter> direct_;  // of a large file, else null
};

// For tests: files of at least so many bytes are written past the page cache, instead of those of at least 16 MiB.
void set_direct_writes_from(std::uint64_t bytes);

// Held from before something half-written lies on disk until its owner's destructor has removed it.
class UnfinishedOutput {
 public:
  UnfinishedOutput();
  UnfinishedOutput(UnfinishedOutput&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  UnfinishedOutput& operator=(UnfinishedOutput&&) = delete;
  ~UnfinishedOutput();

 private:
  bool counts_ = true;
};

// If something half-written lies on disk: every OutputFile::write() of this process throws Interrupted from now on, so
// that it is removed on the way out. False if there is nothing. Async-signal-safe.
[[nodiscard]] bool interrupt_unfinished_output(int signal_number);

// Throws Interrupted once interrupt_unfinished_output() has found something.
void check_interrupted_output();

// Until nothing half-written lies on disk, as where several threads remove theirs.
void wait_for_unfinished_output(const Deadline& deadline);

// Writes a small file as a whole, in place of the one that may be there: a reader finds the old one or the new one.
// Throws rp::Error (kOutputFailed), also if `path` is there and no regular file.
void replace_file(const std::filesystem::path& path, std::string_view content);

// Opens a file that outlives the run, as a log, or makes it: `flags` and `permissions` as those of open(2). Never
// through a link in its place, never a pipe or device, and never waits. Throws rp::Error (kOutputFailed): path, the
// system's reason, `remedy`.
[[nodiscard]] UniqueFd open_kept_file(const std::filesystem::path& path, int flags, unsigned permissions,
                                      std::string_view remedy);

// The pipe behind a descriptor once more, to write into without waiting: a full one gives EAGAIN. Others that have the
// pipe open are not concerned, as they would be by fcntl(). Nothing if it is no pipe.
[[nodiscard]] UniqueFd reopen_pipe_without_waiting(int fd);

// Makes the names in a directory permanent. Throws rp::Error (kOutputFailed). File systems that cannot sync a
// directory (EINVAL) are taken as they are.
void sync_directory(const std::filesystem::path& directory);

}  // namespace rp
