#include "hoststore/memory/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "common/system/nameless_file.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "hoststore/memory/memory_limit.h"
#include "roundpipe/error.h"

namespace rp {

namespace ipc = boost::interprocess;

const char* backing_name(Backing backing) { return backing == Backing::kShm ? "shm" : "memfd"; }

namespace {

std::uint64_t free_bytes_of_shm() { return free_bytes_on_disk("/dev/shm"); }

struct stat state_of(int fd, const std::string& purpose) {
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    throw Error(ExitCode::kNoResource, cat("cannot look at the memory of ", purpose, ": ", errno_text(errno)));
  }
  return info;
}

// Lets boost::interprocess map a descriptor that it does not own.
struct MappableDescriptor {
  int fd;
  [[nodiscard]] ipc::mapping_handle_t get_mapping_handle() const {
    return ipc::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

}  // namespace

Segment Segment::create(Backing backing, std::string purpose) {
  UniqueFd fd = backing == Backing::kShm ? create_nameless_file("/dev/shm")
                                         : UniqueFd(memfd_create(purpose.c_str(), MFD_CLOEXEC));
  if (!fd) {
    const int error = errno;
    const char* remedy = error == EMFILE || error == ENFILE ? "; raise the limit on open files (ulimit -n)"
                         : backing == Backing::kShm         ? "; use --store memfd"
                                                            : "";
    throw Error(ExitCode::kNoResource, cat("cannot create shared memory (", backing_name(backing), ") for ", purpose,
                                           ": ", errno_text(error), remedy));
  }
  return Segment(std::move(fd), std::move(purpose));
}

Segment Segment::create_file(const std::string& directory, std::string purpose) {
  struct stat info {};
  const bool is_there = stat(directory.c_str(), &info) == 0;
  if (!is_there || !S_ISDIR(info.st_mode)) {
    throw Error(ExitCode::kUsage,
                cat("--params-on ", directory, ": ", is_there ? "it is no directory" : errno_text(errno),
                    "; give a directory with room for weights, gradients and optimizer state"));
  }
  UniqueFd fd = create_nameless_file(directory);
  if (!fd) {
    throw Error(ExitCode::kNoResource, cat("--params-on ", directory, ": cannot make a file for ", purpose, " there: ",
                                           errno_text(errno), "; choose a directory that you may write to"));
  }
  return Segment(std::move(fd), std::move(purpose), directory);
}

Segment Segment::attach(UniqueFd fd, std::string purpose) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw Error(ExitCode::kNoResource, cat("the descriptor of ", purpose, " is no memory file"));
  }
  return Segment(std::move(fd), std::move(purpose));
}

void Segment::reserve(std::uint64_t bytes) {
  const std::uint64_t present = this->bytes();
  if (bytes <= present) return;
  // For an anonymous file the kernel would hand out all memory that exists and then kill a process,
  // so check first.
  int error = directory_.empty() && bytes - present > available_memory() ? ENOMEM : 0;
  while (error == 0) {
    // Not posix_fallocate(): if the file system cannot reserve space, that function writes to each
    // block instead.
    if (fallocate(fd_.get(), 0, static_cast<off_t>(present), static_cast<off_t>(bytes - present)) == 0) return;
    error = errno == EINTR ? 0 : errno;
  }
  // Release the part that was reserved, so that the segment keeps its length.
  if (retry_interrupted([&] { return ftruncate(fd_.get(), static_cast<off_t>(present)); }) != 0) error = errno;
  throw_not_reserved(bytes - present, error);
}

void Segment::lengthen(std::uint64_t bytes) {
  if (bytes <= this->bytes()) return;
  if (retry_interrupted([&] { return ftruncate(fd_.get(), static_cast<off_t>(bytes)); }) == 0) return;
  throw Error(ExitCode::kNoResource, cat("cannot make the memory file of ", purpose_, " ", bytes_text(bytes),
                                         " long: ", errno_text(errno), "; raise `ulimit -f`"));
}

void Segment::throw_not_reserved(std::uint64_t bytes, int error) const {
  if (error == EFBIG) {
    throw Error(ExitCode::kNoResource,
                cat("cannot reserve ", bytes_text(bytes), " of memory for ", purpose_, ": ", errno_text(error),
                    "; raise the limit on the size of files (ulimit -f), which counts for shared memory, too"));
  }
  if (directory_.empty()) {
    throw Error(ExitCode::kNoResource,
                cat("cannot reserve ", bytes_text(bytes), " of memory for ", purpose_, ": ", errno_text(error), " (",
                    bytes_text(available_memory()), " of memory and ", bytes_text(free_bytes_of_shm()),
                    " of /dev/shm are free); use --store memfd, a smaller model or shorter sequences"));
  }
  if (error == EOPNOTSUPP) {
    throw Error(ExitCode::kNoResource, cat("--params-on ", directory_,
                                           ": its file system cannot reserve space (fallocate); choose a directory on "
                                           "ext4, XFS or another one that can"));
  }
  throw Error(ExitCode::kNoResource,
              cat("--params-on ", directory_, ": cannot reserve ", bytes_text(bytes), " for ", purpose_, ": ",
                  errno_text(error), " (", bytes_text(free_bytes_on_disk(directory_)),
                  " are free there); make room or choose another directory"));
}

std::uint64_t Segment::bytes() const { return static_cast<std::uint64_t>(state_of(fd_.get(), purpose_).st_size); }

std::uint64_t Segment::allocated_bytes() const {
  constexpr std::uint64_t kStatBlock = 512;
  return static_cast<std::uint64_t>(state_of(fd_.get(), purpose_).st_blocks) * kStatBlock;
}

bool Segment::is_in_memory() const {
  struct statfs info {};
  return fstatfs(fd_.get(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

Mapping::Mapping(const Segment& segment, Access access, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t present = segment.bytes();
  if (offset > present || bytes > present - offset) {
    throw Error(ExitCode::kNoResource, cat("the memory of ", segment.purpose(), " has ", present, " bytes, but ", bytes,
                                           " from byte ", offset, " are needed"));
  }
  try {
    region_ = ipc::mapped_region(MappableDescriptor{segment.fd()},
                                 access == Access::kReadOnly ? ipc::read_only : ipc::read_write,
                                 static_cast<ipc::offset_t>(offset), bytes);
  } catch (const ipc::interprocess_exception& error) {
    throw Error(ExitCode::kNoResource,
                cat("cannot map ", bytes_text(bytes), " of ", segment.purpose(), ": ", error.what()));
  }
}

void Mapping::advise_huge_pages() const {
  if (bytes() > 0) (void)madvise(data(), bytes(), MADV_HUGEPAGE);
}

std::uint64_t free_bytes_on_disk(const std::string& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return 0;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

Backing choose_backing(const std::string& forced, std::uint64_t bytes, SharedHugePages huge_pages) {
  if (forced == "memfd") return Backing::kMemfd;
  if (!forced.empty() && forced != "shm") {
    throw Error(ExitCode::kUsage, cat("--store is '", forced, "', but it is shm or memfd"));
  }
  if (forced.empty() && huge_pages != SharedHugePages::kNever) return Backing::kMemfd;
  const std::uint64_t free = free_bytes_of_shm();
  if (bytes <= free) return Backing::kShm;
  if (forced == "shm") {
    throw Error(ExitCode::kNoResource,
                cat("the host store needs ", bytes_text(bytes), ", but /dev/shm has ", bytes_text(free),
                    " free; use --store memfd, or a larger /dev/shm (docker run --shm-size)"));
  }
  return Backing::kMemfd;
}

}  // namespace rp
