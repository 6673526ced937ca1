// nccl/nccl_table.h
// A table of the NCCL functions that this project uses. It is loaded from NCCL's library, or
// provided by a test (tests/nccl/fake_nccl.h).
//
// Members have the names of NCCL's functions without `nccl`. NCCL's types and numbers are declared
// here, because its header is not everywhere where this project is built; nccl_table.cc compares
// them with the header where there is one. A table does not change once it is in use, and the
// library is never unloaded.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>
#include <type_traits>

#include "common/shm_safe.h"
#include "roundpipe/error.h"

// The types behind NCCL's ncclComm_t and behind the driver's CUstream.
struct ncclComm;
struct CUstream_st;

namespace rp {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// What is sent: bytes.
enum class NcclType : int { kUint8 = 1 };

// Names a communicator that several processes are about to join. One of them makes it, and passes
// it to the others.
struct NcclId {
  using ShmFormat = void;
  std::array<char, 128> bytes{};
};
static_assert(sizeof(NcclId) == 128 && ShmSafe<NcclId>);

// NCCL's ncclConfig_t as in version 2.18. Newer libraries accept it, and set what came later.
struct NcclConfig {
  static constexpr unsigned kVersion = 21'800;  // 2.18.0
  static constexpr int kDefault = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kVersion;
  int blocking = kDefault;
  int cga_cluster_size = kDefault;
  int min_ctas = kDefault;
  int max_ctas = kDefault;
  const char* net_name = nullptr;
  int split_share = kDefault;
};
static_assert(sizeof(NcclConfig) == 48 && std::is_standard_layout_v<NcclConfig>);

struct NcclTable {
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(ncclComm** comm, int num_ranks, NcclId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_get_async_error)(ncclComm* comm, NcclResult* error) = nullptr;
  NcclResult (*comm_finalize)(ncclComm* comm) = nullptr;
  NcclResult (*comm_destroy)(ncclComm* comm) = nullptr;
  NcclResult (*comm_abort)(ncclComm* comm) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void* data, std::size_t count, NcclType type, int peer, ncclComm* comm,
                     CUstream_st* stream) = nullptr;
  NcclResult (*recv)(void* data, std::size_t count, NcclType type, int peer, ncclComm* comm,
                     CUstream_st* stream) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(ncclComm* comm) = nullptr;
};

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// Loads the library `name`. Throws rp::Error (kNoResource) with the remedy if it does not exist or
// is too old.
[[nodiscard]] NcclTable load_nccl(const std::string& name = kNcclLibrary);

// Returns the version as NCCL writes it: "2.28.9".
[[nodiscard]] std::string nccl_version_text(int version);

// Returns NCCL's text of a result, and of the last error of this process if there is one.
[[nodiscard]] std::string nccl_result_text(const NcclTable& table, NcclResult result);

// Throws rp::Error if NCCL reports an error; an operation in progress is none. kNodeLost if another
// rank or the network is lost, kGpuFailed if a call of CUDA has failed, else kUserError. `what`: the
// operation in progress, such as "exchanging gradients".
void check_nccl(const NcclTable& table, NcclResult result, const std::string& what);

}  // namespace rp
