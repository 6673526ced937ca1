#include "train/output/kept_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/files/output_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

Error output_failed(const std::filesystem::path& path, const char* what, int error_number) {
  return Error(ExitCode::kOutputFailed, cat(path.string(), ": cannot be ", what, ": ", errno_text(error_number)));
}

}  // namespace

KeptFile KeptFile::open(const std::filesystem::path& path) {
  UniqueFd fd = open_kept_file(path, O_RDWR | O_APPEND, 0666, "remove it or name another --output");
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw output_failed(path, "looked at", errno);
  return KeptFile(path, std::move(fd), info.st_size);
}

void KeptFile::append(const std::string& record) {
  std::size_t put = 0;
  while (put < record.size()) {
    const ssize_t bytes = ::write(fd_.get(), record.data() + put, record.size() - put);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      const int error_number = errno;
      // Removes the incomplete record. If even this fails, nothing else can be tried.
      (void)!ftruncate(fd_.get(), bytes_);
      throw output_failed(path_, "written", error_number);
    }
    put += static_cast<std::size_t>(bytes);
  }
  bytes_ += static_cast<std::int64_t>(record.size());
}

void KeptFile::truncate(std::int64_t bytes) {
  while (ftruncate(fd_.get(), bytes) != 0) {
    if (errno != EINTR) throw output_failed(path_, "truncated", errno);
  }
  bytes_ = bytes;
}

}  // namespace rp
