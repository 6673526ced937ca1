#include "model_files/output_directory.h"

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
#include "common/input_file.h"
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

std::string partial_prefix(const fs::path& target) { return "." + target.filename().string() + ".partial-"; }

// The directory, locked; none if another process has the lock or the directory is gone.
UniqueFd lock_directory(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || fstat(fd.get(), &status) != 0 || status.st_nlink == 0) {
    return {};
  }
  return fd;
}

// Whether `name` is a partial directory of `target`, or of another number where the target's name ends with one.
bool is_partial_of(std::string name, const fs::path& target) {
  const std::string whole = target.filename().string();
  const std::size_t stem = whole.find_last_not_of("0123456789") + 1;
  const std::size_t end = name.find(".partial-", 1);
  if (end == std::string::npos || !name.starts_with("." + whole.substr(0, stem))) return false;
  const std::string number = name.substr(1 + stem, end - 1 - stem);
  return (stem < whole.size() || number.empty()) && number.find_first_not_of("0123456789") == std::string::npos;
}

// What killed processes left. Best effort: an error here is no reason not to go on.
void remove_stale_partials(const fs::path& target) {
  std::error_code error;
  std::vector<fs::path> candidates;
  for (fs::directory_iterator entry(target.parent_path(), error), end; !error && entry != end; entry.increment(error)) {
    if (is_partial_of(entry->path().filename().string(), target)) candidates.push_back(entry->path());
  }
  for (const fs::path& candidate : candidates) {
    if (lock_directory(candidate)) fs::remove_all(candidate, error);
  }
}

void sync_directories_below(const fs::path& top) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(top)) {
    if (entry.is_directory() && !entry.is_symlink()) sync_directory(entry.path());
  }
  sync_directory(top);
}

// 0, or the errno of a rename that is refused.
int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

bool is_unsupported(int error_number) { return error_number == EINVAL || error_number == ENOSYS; }

}  // namespace

OutputDirectory OutputDirectory::create(const fs::path& target, Existing existing) {
  std::error_code error;
  fs::path whole = fs::absolute(target).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "dir/"
  if (existing == Existing::kRefuse && fs::exists(fs::symlink_status(whole, error))) throw exists_already(whole);
  fs::create_directories(whole.parent_path(), error);
  if (error) throw failed(whole.parent_path(), "created", error.value());
  remove_stale_partials(whole);
  UnfinishedOutput unfinished;  // before there is anything: no signal may find a directory that does not count
  for (;;) {
    const fs::path partial = whole.parent_path() / (partial_prefix(whole) + random_suffix());
    if (mkdir(partial.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw failed(partial, "created", errno);
    }
    // Another process may have found it stale before the lock was ours; then there is no lock, and a new name is due.
    UniqueFd lock = lock_directory(partial);
    if (lock) return OutputDirectory(whole, partial, std::move(unfinished), std::move(lock), existing);
    if (fs::exists(partial, error)) throw failed(partial, "locked", EWOULDBLOCK);
  }
}

void OutputDirectory::make(const fs::path& target, const std::function<void(const OutputDirectory&)>& write) {
  try {
    OutputDirectory directory = create(target);
    write(directory);
    directory.commit();
  } catch (...) {
    throw;  // caught, so that the directory is removed on the way here
  }
}

OutputDirectory::~OutputDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void OutputDirectory::copy_in(const fs::path& source, const fs::path& name) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  const InputFile from = InputFile::open(source);
  OutputFile to = OutputFile::create(partial_ / name, from.size());
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
  sync_directories_below(partial_);
  int error = rename_with(partial_, target_, RENAME_NOREPLACE);
  // Without the flag rename() replaces an empty directory at most.
  if (is_unsupported(error)) error = rename_with(partial_, target_, 0);
  if ((error == EEXIST || error == ENOTEMPTY) && existing_ == Existing::kReplace) {
    replace_target();
  } else if (error == EEXIST || error == ENOTEMPTY) {
    throw exists_already(target_);
  } else if (error != 0) {
    throw failed(target_, "renamed into place", error);
  }
  lock_.reset();
  sync_directory(target_.parent_path());
}

void OutputDirectory::replace_target() {
  fs::path old = partial_;  // after an exchange the old one has the partial's name
  int error = rename_with(partial_, target_, RENAME_EXCHANGE);
  if (is_unsupported(error)) {
    // Not a partial's name: if we die before the second rename, nobody may take the old one for a leftover.
    old = target_.parent_path() / ("." + target_.filename().string() + ".old-" + random_suffix());
    error = rename_with(target_, old, 0);
    if (error == 0) error = rename_with(partial_, target_, 0);
  }
  if (error != 0) throw failed(target_, "replaced", error);
  sync_directory(target_.parent_path());
  std::error_code ignored;
  fs::remove_all(old, ignored);
}

}  // namespace rp
