// common/checked_files/output_directory.h
// Writes a directory that appears complete or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "common/checked_files/checksum.h"
#include "common/files/input_file.h"
#include "common/files/output_file.h"
#include "common/system/fd.h"

namespace rp {

// While it is being filled, the directory is next to its target as `.<name>.partial-<random>`.
// commit() renames it. The destructor removes it if it was not committed. If the process was
// killed, the next create() removes it, if that is for the same target or for another number of its
// series, such as `checkpoint-7`. A lock distinguishes it from a directory that is still being
// filled.
//
// The directory contains a list of checksums (ChecksumList) of the files that create_file(),
// write_file() and copy_in() made.
//
// Every failure throws rp::Error (kOutputFailed) with path and reason.
class OutputDirectory {
 public:
  // Creates the parent directories, too. Fails at once if the target exists.
  static OutputDirectory create(const std::filesystem::path& target, ChecksumKind checksums = ChecksumKind::kSha256);

  // Fills a directory that another process, perhaps on another machine, has created and will commit:
  // create_file() and the like may be called. The other process lists the files, from checksums().
  static OutputDirectory join(const std::filesystem::path& partial, ChecksumKind checksums);

  // Calls create(), `write` and commit(). If `write` throws, the exception leaves this function
  // after the directory was removed. A caller's OutputDirectory would not be removed if no code
  // caught the exception, as in most programs' main(), because then no destructor runs.
  static void make(const std::filesystem::path& target, ChecksumKind checksums,
                   const std::function<void(const OutputDirectory&)>& write);

  // Removes a directory that commit() made. Its name disappears at once for all processes. If this
  // process is killed, or if a file cannot be removed yet, the next create() of the series removes
  // the rest. Throws rp::Error (kOutputFailed) if the directory keeps its name.
  static void remove(const std::filesystem::path& target);

  OutputDirectory(OutputDirectory&&) = default;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();

  // The path of the directory while it is being filled.
  [[nodiscard]] const std::filesystem::path& path() const { return partial_; }

  // Creates a file in this directory, which is listed with its checksum once it is committed.
  // REQUIRES: `name` is a plain file name.
  [[nodiscard]] OutputFile create_file(const std::string& name, std::uint64_t total_bytes = 0,
                                       unsigned permissions = OutputFile::kAnyonesPermissions) const;
  // Like create_file(), for a small file whose content is complete: writes and commits it.
  void write_file(const std::string& name, std::string_view content,
                  unsigned permissions = OutputFile::kAnyonesPermissions) const;
  // Copies a file to `name` in this directory, with its permissions, and commits it.
  void copy_in(const InputFile& from, const std::string& name) const;

  // Lists a file that a process that has joined has committed.
  void list(const std::string& name, const std::string& checksum) const { checksums_->add(name, checksum); }
  [[nodiscard]] const ChecksumList& checksums() const { return *checksums_; }

  // Writes the list of checksums, makes all names permanent and renames the directory. Fails if the
  // target exists at that time. REQUIRES: every file was committed; this directory was not joined.
  void commit();

 private:
  OutputDirectory(std::filesystem::path target, std::filesystem::path partial, UnfinishedOutput unfinished,
                  UniqueFd lock, ChecksumKind checksums)
      : target_(std::move(target)),
        partial_(std::move(partial)),
        unfinished_(std::move(unfinished)),
        lock_(std::move(lock)),
        checksums_(std::make_shared<ChecksumList>(checksums)) {}

  std::filesystem::path target_;
  std::filesystem::path partial_;
  UnfinishedOutput unfinished_;
  UniqueFd lock_;  // open on partial_, locked by flock(); closed once committed or moved from, or if it was joined
  std::shared_ptr<ChecksumList> checksums_;  // shared with the files that are being written
};

// Renames a directory to a name that must not exist. Returns 0 or an errno: EEXIST or ENOTEMPTY if
// the name exists.
[[nodiscard]] int rename_to_new_name(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace rp
