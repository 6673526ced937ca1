#include "nccl/nccl_table.h"

#include <dlfcn.h>

#include <cstdlib>

#include "common/text.h"

// If the header is installed, check that the declarations agree (nccl/CMakeLists.txt).
#ifdef RP_HAS_NCCL_HEADER
#include <nccl.h>
static_assert(static_cast<int>(rp::NcclResult::kSuccess) == ncclSuccess &&
              static_cast<int>(rp::NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError &&
              static_cast<int>(rp::NcclResult::kSystemError) == ncclSystemError &&
              static_cast<int>(rp::NcclResult::kInternalError) == ncclInternalError &&
              static_cast<int>(rp::NcclResult::kInvalidArgument) == ncclInvalidArgument &&
              static_cast<int>(rp::NcclResult::kInvalidUsage) == ncclInvalidUsage &&
              static_cast<int>(rp::NcclResult::kRemoteError) == ncclRemoteError &&
              static_cast<int>(rp::NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(rp::NcclType::kUint8) == ncclUint8);
static_assert(sizeof(rp::NcclId) == sizeof(ncclUniqueId) && alignof(rp::NcclId) == alignof(ncclUniqueId));
static_assert(std::is_same_v<ncclComm_t, ncclComm*> && std::is_same_v<cudaStream_t, CUstream_st*>);
#if NCCL_VERSION_CODE >= 21800
static_assert(sizeof(rp::NcclConfig) <= sizeof(ncclConfig_t) && NCCL_CONFIG_UNDEF_INT == rp::NcclConfig::kDefault &&
              rp::NcclConfig::kVersion == NCCL_VERSION(2, 18, 0));
#define RP_SAME_PLACE(ours, theirs) static_assert(offsetof(rp::NcclConfig, ours) == offsetof(ncclConfig_t, theirs))
RP_SAME_PLACE(size, size);
RP_SAME_PLACE(magic, magic);
RP_SAME_PLACE(version, version);
RP_SAME_PLACE(blocking, blocking);
RP_SAME_PLACE(cga_cluster_size, cgaClusterSize);
RP_SAME_PLACE(min_ctas, minCTAs);
RP_SAME_PLACE(max_ctas, maxCTAs);
RP_SAME_PLACE(net_name, netName);
RP_SAME_PLACE(split_share, splitShare);
#undef RP_SAME_PLACE
#endif
#endif

namespace rp {

namespace {

[[noreturn]] void fail_without_nccl(const std::string& why) {
  throw Error(ExitCode::kNoResource, cat("--reduce nccl needs NCCL ", nccl_version_text(NcclConfig::kVersion), ": ",
                                         why, "; install NVIDIA's package libnccl2 on each node, or use --reduce mpi"));
}

}  // namespace

NcclTable load_nccl(const std::string& name) {
  // It has precedence over NcclConfig::blocking, which no thread could then abort.
  setenv("NCCL_COMM_BLOCKING", "0", /*overwrite=*/1);
  // If LibTorch's plug-in is in this process and has brought a copy, the loader returns that one.
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail_without_nccl(cat(name, " cannot be loaded (", dlerror(), ")"));
  NcclTable table;
  const auto load = [&](auto& member, const char* function) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(library, function));
    if (member == nullptr) fail_without_nccl(cat(name, " has no ", function, ", so it is older"));
  };
  load(table.get_version, "ncclGetVersion");
  load(table.get_unique_id, "ncclGetUniqueId");
  load(table.comm_init_rank_config, "ncclCommInitRankConfig");
  load(table.comm_get_async_error, "ncclCommGetAsyncError");
  load(table.comm_finalize, "ncclCommFinalize");
  load(table.comm_destroy, "ncclCommDestroy");
  load(table.comm_abort, "ncclCommAbort");
  load(table.group_start, "ncclGroupStart");
  load(table.group_end, "ncclGroupEnd");
  load(table.send, "ncclSend");
  load(table.recv, "ncclRecv");
  load(table.get_error_string, "ncclGetErrorString");
  load(table.get_last_error, "ncclGetLastError");
  int version = 0;
  check_nccl(table, table.get_version(&version), "asking NCCL for its version");
  if (version < static_cast<int>(NcclConfig::kVersion)) {
    fail_without_nccl(cat(name, " has version ", nccl_version_text(version)));
  }
  return table;
}

std::string nccl_version_text(int version) {
  return cat(version / 10'000, ".", version % 10'000 / 100, ".", version % 100);
}

std::string nccl_result_text(const NcclTable& table, NcclResult result) {
  const char* const text = table.get_error_string(result);
  const char* const last = table.get_last_error(nullptr);
  std::string all = text == nullptr ? cat("NCCL's result ", static_cast<int>(result)) : std::string(text);
  if (last != nullptr && *last != '\0') all += cat(" (", last, ")");
  return all;
}

void check_nccl(const NcclTable& table, NcclResult result, const std::string& what) {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return;
  const bool is_lost = result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
  const char* const remedy =
      is_lost ? "; if no node is lost, look at the network that NCCL has chosen: NCCL_DEBUG=INFO prints it, "
                "NCCL_SOCKET_IFNAME names another one"
              : "";
  throw Error(is_lost                                     ? ExitCode::kNodeLost
              : result == NcclResult::kUnhandledCudaError ? ExitCode::kGpuFailed
                                                          : ExitCode::kUserError,
              cat(what, ": NCCL reports: ", nccl_result_text(table, result), remedy));
}

}  // namespace rp
