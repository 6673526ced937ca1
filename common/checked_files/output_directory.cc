#include "common/checked_files/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/files/directory_names.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

Error failed(const fs::path& path, const char* what, int error_number) {
  return Error(ExitCode::kOutputFailed, cat(path.string(), ": cannot be ", what, ": ", errno_text(error_number)));
}

Error exists_already(const fs::path& target) {
  return Error(ExitCode::kOutputFailed, cat(target.string(), ": is there already; remove it or choose another name"));
}

std::string random_suffix() {
  std::random_device device;
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", device());
  return text.data();
}

std::string partial_prefix(const fs::path& target) { return cat(".", target.filename().string(), ".partial-"); }

// Opens and locks a directory. Returns nothing, with errno set, if another process has the lock or
// the directory is gone.
UniqueFd lock_directory(const fs::path& path) {
  UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW); }));
  struct stat status {};
  if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || fstat(fd.get(), &status) != 0) return {};
  if (status.st_nlink > 0) return fd;
  errno = ENOENT;
  return {};
}

// Returns whether `name` is a partial directory of `target`. If the target's name ends with a
// number, partial directories with another number count, too.
bool is_partial_of(const std::string& name, const fs::path& target) {
  const std::string whole = target.filename().string();
  const std::size_t stem = whole.find_last_not_of("0123456789") + 1;
  const std::size_t end = name.find(".partial-", 1);
  if (end == std::string::npos || !name.starts_with(cat(".", whole.substr(0, stem)))) return false;
  const std::string number = name.substr(1 + stem, end - 1 - stem);
  return (stem < whole.size() || number.empty()) && number.find_first_not_of("0123456789") == std::string::npos;
}

// Removes what killed processes left. An error is ignored, because the caller can continue without
// this.
void remove_stale_partials(const fs::path& target) {
  std::error_code error;
  for (const std::string& name : names_in(target.parent_path(), error)) {
    const fs::path candidate = target.parent_path() / name;
    if (is_partial_of(name, target) && lock_directory(candidate)) fs::remove_all(candidate, error);
  }
}

// Lists a file with its checksum once it is committed.
class ListingObserver : public OutputFile::Observer {
 public:
  ListingObserver(std::string name, std::shared_ptr<ChecksumList> list)
      : name_(std::move(name)), list_(std::move(list)), checksum_(list_->kind()) {}
  void on_write(const void* data, std::uint64_t bytes) override { checksum_.add(data, bytes); }
  void on_commit() override { list_->add(name_, checksum_.hex()); }

 private:
  std::string name_;
  std::shared_ptr<ChecksumList> list_;
  Checksum checksum_;
};

}  // namespace

OutputDirectory OutputDirectory::create(const fs::path& target, ChecksumKind checksums) {
  std::error_code error;
  fs::path whole = fs::absolute(target).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "dir/"
  if (fs::exists(fs::symlink_status(whole, error))) throw exists_already(whole);
  fs::create_directories(whole.parent_path(), error);
  if (error) throw failed(whole.parent_path(), "created", error.value());
  remove_stale_partials(whole);
  UnfinishedOutput unfinished;  // created first, because no signal may find a directory that is not counted
  for (;;) {
    const fs::path partial = whole.parent_path() / (partial_prefix(whole) + random_suffix());
    if (mkdir(partial.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw failed(partial, "created", errno);
    }
    // Another process may have removed the directory as stale before this one locked it. Then there
    // is no lock, and another name is tried.
    UniqueFd lock = lock_directory(partial);
    if (lock) return OutputDirectory(whole, partial, std::move(unfinished), std::move(lock), checksums);
    const int error_number = errno;
    if (!fs::exists(partial, error)) continue;
    fs::remove(partial, error);
    throw failed(partial, "locked", error_number);
  }
}

OutputDirectory OutputDirectory::join(const fs::path& partial, ChecksumKind checksums) {
  return OutputDirectory({}, partial, UnfinishedOutput(), UniqueFd(), checksums);
}

void OutputDirectory::make(const fs::path& target, ChecksumKind checksums,
                           const std::function<void(const OutputDirectory&)>& write) {
  try {
    OutputDirectory directory = create(target, checksums);
    write(directory);
    directory.commit();
  } catch (...) {
    throw;  // caught here, so that the directory's destructor has run
  }
}

void OutputDirectory::remove(const fs::path& target) {
  const fs::path partial = target.parent_path() / (partial_prefix(target) + random_suffix());
  if (const int error = rename_to_new_name(target, partial); error != 0) throw failed(target, "removed", error);
  std::error_code ignored;  // on NFS a file that a process has open cannot be removed yet
  fs::remove_all(partial, ignored);
}

OutputDirectory::~OutputDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

OutputFile OutputDirectory::create_file(const std::string& name, std::uint64_t total_bytes,
                                        unsigned permissions) const {
  return OutputFile::create(partial_ / name, total_bytes, std::make_unique<ListingObserver>(name, checksums_),
                            permissions);
}

void OutputDirectory::write_file(const std::string& name, std::string_view content, unsigned permissions) const {
  OutputFile file = create_file(name, content.size(), permissions);
  file.write(content.data(), content.size());
  file.commit();
}

void OutputDirectory::copy_in(const InputFile& from, const std::string& name) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  OutputFile to = create_file(name, from.size(), from.permissions());
  std::vector<char> piece(std::min(kPiece, from.size()));
  while (to.bytes_written() < from.size()) {
    const std::uint64_t bytes = std::min(kPiece, from.size() - to.bytes_written());
    from.read_at(to.bytes_written(), piece.data(), bytes);
    to.write(piece.data(), bytes);
  }
  to.commit();
}

void OutputDirectory::commit() {
  RP_ASSERT(static_cast<bool>(lock_));
  const std::string list = checksums_->text();
  OutputFile file = OutputFile::create(partial_ / ChecksumList::file_name(checksums_->kind()), list.size());
  file.write(list.data(), list.size());
  file.commit();
  sync_directory(partial_);
  const int error = rename_to_new_name(partial_, target_);
  if (error == EEXIST || error == ENOTEMPTY) throw exists_already(target_);
  if (error != 0) throw failed(target_, "renamed into place", error);
  lock_.reset();
  sync_directory(target_.parent_path());
}

int rename_to_new_name(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // The file system does not support the flag, as NFS. Then rename() replaces at most an empty
  // directory.
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(to, ignored))) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace rp
