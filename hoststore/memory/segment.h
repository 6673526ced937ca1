// hoststore/memory/segment.h
// One piece of shared memory: a file without a name, in memory or in a directory, known by its descriptor only.
//
// The coordinator creates segments; rp-launch holds their descriptors and hands them to the workers, so that no crash
// leaves a segment behind and nobody else can open one. A segment never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <boost/interprocess/mapped_region.hpp>

#include "common/system/fd.h"
#include "hoststore/memory/page_policy.h"

namespace rp {

// Where segments live. kShm: POSIX shared memory under /dev/shm, whose size an administrator limits (64 MiB in many
// containers); kMemfd: anonymous memory files, limited by the memory control group only.
enum class Backing : std::uint32_t { kShm, kMemfd };

[[nodiscard]] const char* backing_name(Backing backing);

// A segment's descriptor. Move-only.
class Segment {
 public:
  // A new, empty segment. `purpose` is for error messages. Throws rp::Error (kNoResource).
  static Segment create(Backing backing, std::string purpose);
  // A new, empty segment in `directory`, for what is larger than memory: the kernel writes its pages there and reads
  // them again. Throws rp::Error: kUsage if that is no directory, kNoResource if no file can be made there.
  static Segment create_file(const std::string& directory, std::string purpose);
  // Takes over a descriptor that another process created. Throws rp::Error (kNoResource) if it is no file.
  static Segment attach(UniqueFd fd, std::string purpose);

  // Lengthens the segment to `bytes` and reserves the memory or the space on disk, so that no access can fail later.
  // Throws rp::Error (kNoResource) with need, free and remedy; the segment keeps its length then.
  void reserve(std::uint64_t bytes);

  // Lengthens the segment without reserving anything: memory is taken page by page when it is touched, and an access
  // may fail then. For emulated runs, which touch next to nothing. Throws rp::Error (kNoResource).
  void lengthen(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t bytes() const;
  // What the kernel has allocated to it: of memory, or on disk.
  [[nodiscard]] std::uint64_t allocated_bytes() const;
  // Its pages are memory, not a cache of what is on a disk.
  [[nodiscard]] bool is_in_memory() const;
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& purpose() const { return purpose_; }

 private:
  Segment(UniqueFd fd, std::string purpose, std::string directory = {})
      : fd_(std::move(fd)), purpose_(std::move(purpose)), directory_(std::move(directory)) {}
  [[noreturn]] void throw_not_reserved(std::uint64_t bytes, int error) const;

  UniqueFd fd_;
  std::string purpose_;
  std::string directory_;  // of create_file(), in the process that called it
};

enum class Access { kReadOnly, kReadWrite };

// A segment (or a part of it) in the address space of this process.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` bytes from `offset` (a multiple of the page size). Throws rp::Error (kNoResource) if the segment is
  // shorter than that.
  Mapping(const Segment& segment, Access access, std::uint64_t offset, std::uint64_t bytes);

  // Its pages, where they are not there yet, may be huge (SharedHugePages::kAdvised).
  void advise_huge_pages();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t bytes() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
};

// Bytes that a file in `directory` may still take; 0 if nobody can say.
[[nodiscard]] std::uint64_t free_bytes_on_disk(const std::string& directory);

// The backing to use for `bytes` bytes in all: `forced` if given ("shm" or "memfd"); else memfd where it can have huge
// pages, which /dev/shm has only by an option of its mount; else shm where /dev/shm has room for it, else memfd. Throws
// rp::Error: kUsage for another word, kNoResource if shm is forced and too small.
[[nodiscard]] Backing choose_backing(const std::string& forced, std::uint64_t bytes, SharedHugePages huge_pages);

}  // namespace rp
