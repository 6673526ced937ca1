// hoststore/memory/segment.h
// A piece of shared memory: a file without a name, in memory or in a directory, that is accessible
// only through its descriptor.
//
// The coordinator creates segments. rp-launch holds their descriptors and hands them to the
// workers, so a crash leaves no segment behind, and no other process can open one. A segment never
// shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <boost/interprocess/mapped_region.hpp>

#include "common/system/fd.h"
#include "hoststore/memory/page_policy.h"

namespace rp {

// The place where segments are stored. kShm: POSIX shared memory under /dev/shm, whose size an
// administrator limits (64 MiB in many containers). kMemfd: anonymous memory files, which only the
// memory control group limits.
enum class Backing : std::uint32_t { kShm, kMemfd };

[[nodiscard]] const char* backing_name(Backing backing);

// Owns the descriptor of a segment. Move-only.
class Segment {
 public:
  // Creates an empty segment. `purpose` is used in error messages. Throws rp::Error (kNoResource).
  static Segment create(Backing backing, std::string purpose);
  // Creates an empty segment as a file in `directory`, for data that is larger than memory: the
  // kernel writes its pages to the disk and reads them again. Throws rp::Error: kUsage if
  // `directory` is not a directory, kNoResource if no file can be created in it.
  static Segment create_file(const std::string& directory, std::string purpose);
  // Takes over a descriptor of a segment that another process created. Throws rp::Error
  // (kNoResource) if it is not a regular file.
  static Segment attach(UniqueFd fd, std::string purpose);

  // Lengthens the segment to `bytes` and reserves the memory or disk space, so that no later access
  // can fail. Throws rp::Error (kNoResource) with the need, the free amount and a remedy; the
  // segment then keeps its length.
  void reserve(std::uint64_t bytes);

  // Lengthens the segment without reserving anything: the kernel allocates a page when it is first
  // touched, and that access may fail. For emulated runs, which touch almost nothing, and for
  // memory that is populated through a mapping afterwards. Throws rp::Error (kNoResource).
  void lengthen(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t bytes() const;
  // The number of bytes that the kernel has allocated to the segment, in memory or on disk.
  [[nodiscard]] std::uint64_t allocated_bytes() const;
  // True if the segment's pages are memory, rather than a cache of data on a disk.
  [[nodiscard]] bool is_in_memory() const;
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& purpose() const { return purpose_; }

 private:
  Segment(UniqueFd fd, std::string purpose, std::string directory = {})
      : fd_(std::move(fd)), purpose_(std::move(purpose)), directory_(std::move(directory)) {}
  [[noreturn]] void throw_not_reserved(std::uint64_t bytes, int error) const;

  UniqueFd fd_;
  std::string purpose_;
  std::string directory_;  // the argument of create_file() in the process that called it; otherwise empty
};

enum class Access { kReadOnly, kReadWrite };

// Maps a segment, or a part of it, into the address space of this process.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` bytes from `offset` (a multiple of the page size). Throws rp::Error (kNoResource) if the segment is
  // shorter than that.
  Mapping(const Segment& segment, Access access, std::uint64_t offset, std::uint64_t bytes);

  // Requests huge pages for those pages that are not allocated yet (SharedHugePages::kAdvised).
  void advise_huge_pages() const;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t bytes() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
};

// Returns the number of bytes that files in `directory` may still occupy, or 0 if it cannot be
// determined.
[[nodiscard]] std::uint64_t free_bytes_on_disk(const std::string& directory);

// Returns the backing to use for `bytes` bytes in total. If `forced` is given ("shm" or "memfd"),
// it decides. Otherwise the result is memfd if memfd can have huge pages, which /dev/shm has only
// with a mount option; otherwise shm if /dev/shm has enough free space; otherwise memfd. Throws
// rp::Error: kUsage if `forced` is another word, kNoResource if shm is forced and too small.
[[nodiscard]] Backing choose_backing(const std::string& forced, std::uint64_t bytes, SharedHugePages huge_pages);

}  // namespace rp
