// tests/cuda/fake_driver/fake_memory.h
// Memory as the driver without a GPU knows it: GPU memory, and host memory that was allocated by or
// registered with the driver. Refuses what a driver refuses, and what a driver would do slowly.
//
// Not thread-safe: its owner locks.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <utility>

namespace rp::test {

class FakeMemory {
 public:
  FakeMemory(std::uint64_t gpu_bytes, bool registers_read_only)
      : gpu_bytes_(gpu_bytes), registers_read_only_(registers_read_only) {}
  ~FakeMemory();  // also frees what was not freed
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  [[nodiscard]] CUresult allocate(CUcontext context, CUdeviceptr* memory, std::uint64_t bytes);
  [[nodiscard]] CUresult free(CUcontext context, CUdeviceptr memory);
  [[nodiscard]] CUresult allocate_host(CUcontext context, void** memory, std::uint64_t bytes);
  [[nodiscard]] CUresult free_host(CUcontext context, void* memory);
  // REQUIRES: no part is registered in this context. Without CU_MEMHOSTREGISTER_READ_ONLY the
  // process must be able to write to the memory.
  [[nodiscard]] CUresult add(CUcontext context, void* memory, std::uint64_t bytes, unsigned flags);
  [[nodiscard]] CUresult remove(CUcontext context, void* memory);

  // Returns the GPU's address of host memory, which always differs from the processor's.
  [[nodiscard]] CUresult device_address(CUcontext context, CUdeviceptr* device, void* memory) const;

  // Returns this process's address of a copy's operand. Refuses memory that is not within one piece
  // known to the driver (which would first copy it to its own memory), and a target that is
  // registered for reading only.
  [[nodiscard]] CUresult operand(CUcontext context, CUdeviceptr address, std::uint64_t bytes, bool is_target,
                                 void** memory) const;
  // The same for a stream memory operation, which needs a device address that is aligned to eight
  // bytes.
  [[nodiscard]] CUresult word(CUcontext context, CUdeviceptr address, bool is_target, void** memory) const;

  [[nodiscard]] std::uint64_t gpu_bytes() const { return gpu_bytes_; }
  [[nodiscard]] std::uint64_t taken_bytes() const { return taken_bytes_; }
  [[nodiscard]] std::uint64_t registered_bytes() const;

 private:
  enum class Kind { kGpu, kHostAllocated, kRegistered };
  struct Piece {
    std::uint64_t bytes = 0;
    Kind kind = Kind::kGpu;
    bool is_read_only = false;
  };
  // The pieces of one context, by address.
  using Pieces = std::map<std::uintptr_t, Piece>;

  // Returns the piece that contains the whole range, or null.
  [[nodiscard]] const Piece* find(CUcontext context, std::uintptr_t address, std::uint64_t bytes) const;
  // Removes a piece and returns its length, or 0 if no piece of this kind begins there.
  std::uint64_t take_out(CUcontext context, const void* memory, Kind kind);

  const std::uint64_t gpu_bytes_;
  const bool registers_read_only_;
  std::uint64_t taken_bytes_ = 0;
  std::map<CUcontext, Pieces> pieces_;
};

}  // namespace rp::test
