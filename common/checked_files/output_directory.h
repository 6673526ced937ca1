// common/checked_files/output_directory.h
// A directory that appears whole or not at all.
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

// Lies as `.<name>.partial-<random>` beside its target while it is filled, and is renamed by commit(). One that is not
// committed is removed by the destructor; one whose process was killed is removed by the next create() for the same
// target, or another number of its series as `checkpoint-7` (a lock tells it from one still being filled).
//
// Holds a list of checksums (ChecksumList) of the files that create_file() and copy_in() made.
//
// Every failure throws rp::Error (kOutputFailed) with path and reason.
class OutputDirectory {
 public:
  // Makes the parent directories, too. Fails at once if the target exists.
  static OutputDirectory create(const std::filesystem::path& target, ChecksumKind checksums = ChecksumKind::kSha256);

  // create(), write() and commit(). What write() throws comes out when the directory is removed: where nobody catches
  // an exception, as in most programs' main(), no destructor runs.
  static void make(const std::filesystem::path& target, ChecksumKind checksums,
                   const std::function<void(const OutputDirectory&)>& write);

  // Removes a directory that commit() made, which is gone at once for everybody who looks for its name. What is left of
  // it when this process is killed, or where a file cannot be removed yet, the next create() of its series removes.
  // Throws rp::Error (kOutputFailed) if it keeps its name.
  static void remove(const std::filesystem::path& target);

  OutputDirectory(OutputDirectory&&) = default;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();

  // Where it is filled.
  [[nodiscard]] const std::filesystem::path& path() const { return partial_; }

  // A new file in this directory, listed with its checksum once it is committed. REQUIRES: a plain name.
  [[nodiscard]] OutputFile create_file(const std::string& name, std::uint64_t total_bytes = 0,
                                       unsigned permissions = OutputFile::kAnyonesPermissions) const;
  // The same for a small file that is at hand: written and committed.
  void write_file(const std::string& name, std::string_view content,
                  unsigned permissions = OutputFile::kAnyonesPermissions) const;
  // Copies a file to `name` in this directory, with its permissions, and commits it.
  void copy_in(const InputFile& source, const std::string& name) const;

  // Writes the list of checksums, makes all names permanent and renames. Fails if the target exists by now.
  // REQUIRES: every file was committed.
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
  UniqueFd lock_;                            // open on partial_, flock()ed; closed once committed or moved from
  std::shared_ptr<ChecksumList> checksums_;  // also of its files that are being written
};

// Renames a directory to a name that must not exist. 0, or an errno: EEXIST or ENOTEMPTY if there is such a name.
[[nodiscard]] int rename_to_new_name(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace rp
