// model_files/output_directory.h
// A directory that appears whole or not at all.
#pragma once

#include <filesystem>
#include <functional>

#include "common/fd.h"
#include "common/output_file.h"

namespace rp {

// Lies as `.<name>.partial-<random>` beside its target while it is filled, and is renamed by commit(). One that is not
// committed is removed by the destructor; one whose process was killed is removed by the next create() for the same
// target, or another number of its series as `checkpoint-7` (a lock tells it from one still being filled).
//
// Every failure throws rp::Error (kOutputFailed) with path and reason.
class OutputDirectory {
 public:
  // What commit() does with a target that exists. Whether it is the caller's to replace is for the caller to know.
  enum class Existing { kRefuse, kReplace };

  // Makes the parent directories, too. Fails at once if the target exists and `existing` is kRefuse.
  static OutputDirectory create(const std::filesystem::path& target, Existing existing = Existing::kRefuse);

  // create(), write() and commit(). What write() throws comes out when the directory is removed: where nobody catches an
  // exception, as in most programs' main(), no destructor runs.
  static void make(const std::filesystem::path& target, const std::function<void(const OutputDirectory&)>& write);

  OutputDirectory(OutputDirectory&&) = default;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();

  // Where to write. Sub-directories are allowed.
  [[nodiscard]] const std::filesystem::path& path() const { return partial_; }

  // Copies a regular file to `name` in this directory, and syncs it.
  void copy_in(const std::filesystem::path& source, const std::filesystem::path& name) const;

  // Makes all names permanent and renames. The files' contents are the business of those who wrote them (OutputFile).
  // After a crash there is the old target or the new one; on file systems that cannot exchange two names the old one
  // may lie beside its place, as `.<name>.old-<random>`.
  void commit();

 private:
  OutputDirectory(std::filesystem::path target, std::filesystem::path partial, UnfinishedOutput unfinished,
                  UniqueFd lock, Existing existing)
      : target_(std::move(target)),
        partial_(std::move(partial)),
        unfinished_(std::move(unfinished)),
        lock_(std::move(lock)),
        existing_(existing) {}
  void replace_target();

  std::filesystem::path target_;
  std::filesystem::path partial_;
  UnfinishedOutput unfinished_;
  UniqueFd lock_;  // open on partial_, flock()ed; closed once committed or moved from
  Existing existing_;
};

}  // namespace rp
