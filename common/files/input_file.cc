#include "common/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "common/bad_input.h"
#include "common/check.h"
#include "common/system/retry.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Distinguishes errors of the file from those of the system.
Error not_opened(const std::filesystem::path& path, int error_number) {
  const bool lacks_descriptors = error_number == EMFILE || error_number == ENFILE;
  if (!lacks_descriptors && error_number != ENOMEM)
    return bad_input(path, "cannot be opened: ", errno_text(error_number));
  return Error(ExitCode::kNoResource,
               cat(path.string(), ": cannot be opened: ", errno_text(error_number),
                   lacks_descriptors ? "; raise the limit on open files (ulimit -n)" : "; free some memory"));
}

}  // namespace

InputFile InputFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK, because opening a pipe must not wait for its writer. It has no effect on regular
  // files.
  UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
  if (!fd) throw not_opened(path, errno);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) throw bad_input(path, "cannot be examined: ", errno_text(errno));
  if (!S_ISREG(status.st_mode)) throw bad_input(path, "is not a regular file");
  return InputFile(path, std::move(fd), static_cast<std::uint64_t>(status.st_size), status.st_mode & 0777);
}

std::filesystem::path InputFile::real_path() const {
  std::error_code none;
  return std::filesystem::read_symlink(cat("/proc/self/fd/", fd_.get()), none);
}

void InputFile::read_at(std::uint64_t offset, void* destination, std::uint64_t bytes) const {
  RP_ASSERT(offset <= size_ && bytes <= size_ - offset);
  constexpr std::uint64_t kChunk = std::uint64_t{64} << 20;
  auto* to = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_.get(), to, std::min(bytes, kChunk), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw bad_input(path_, "cannot be read at byte ", offset, ": ", errno_text(errno));
    if (got == 0) {
      throw bad_input(path_, "ends at byte ", offset, ", but had ", size_,
                      " bytes when it was opened; is it being written?");
    }
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

std::string InputFile::read_all(std::uint64_t max_bytes) const {
  if (size_ > max_bytes) {
    throw bad_input(path_, "has ", bytes_text(size_), "; at most ", bytes_text(max_bytes), " are read");
  }
  std::string text(size_, '\0');
  read_at(0, text.data(), size_);
  return text;
}

}  // namespace rp
