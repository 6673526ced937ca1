// tests/cuda/fake_driver/fake_memory.h
// Memory as the driver without a GPU knows it: the GPU's, and the host's that was allocated or registered with it.
// Refuses what a driver refuses, and what it would do slowly.
//
// Not for several threads: its owner locks.
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
  ~FakeMemory();  // what was not given back, too
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  [[nodiscard]] CUresult allocate(CUcontext context, CUdeviceptr* memory, std::uint64_t bytes);
  [[nodiscard]] CUresult free(CUcontext context, CUdeviceptr memory);
  [[nodiscard]] CUresult allocate_host(CUcontext context, void** memory, std::uint64_t bytes);
  [[nodiscard]] CUresult free_host(CUcontext context, void* memory);
  // No part may be registered in this context; without CU_MEMHOSTREGISTER_READ_ONLY the process must be able to write
  // to it.
  [[nodiscard]] CUresult add(CUcontext context, void* memory, std::uint64_t bytes, unsigned flags);
  [[nodiscard]] CUresult remove(CUcontext context, void* memory);

  // Where the GPU sees memory of the host's: never where the processor does.
  [[nodiscard]] CUresult device_address(CUcontext context, CUdeviceptr* device, void* memory) const;

  // What a copy's operand is to this process. Refused: what is not in one piece that is known to the driver (the driver
  // would first copy it to memory of its own), and a target that is registered for reading only.
  [[nodiscard]] CUresult operand(CUcontext context, CUdeviceptr address, std::uint64_t bytes, bool is_target,
                                 void** memory) const;
  // Of a stream memory operation: a device address, aligned to its eight bytes.
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
  // Of one context; by address.
  using Pieces = std::map<std::uintptr_t, Piece>;

  // The piece that holds all of it, or null.
  [[nodiscard]] const Piece* find(CUcontext context, std::uintptr_t address, std::uint64_t bytes) const;
  // Takes a piece out; its length, 0 if there is none of this kind that begins there.
  std::uint64_t take_out(CUcontext context, const void* memory, Kind kind);

  const std::uint64_t gpu_bytes_;
  const bool registers_read_only_;
  std::uint64_t taken_bytes_ = 0;
  std::map<CUcontext, Pieces> pieces_;
};

}  // namespace rp::test
