#include "tests/cuda/fake_driver/fake_events.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "common/check.h"

namespace rp::test {

namespace {

constexpr std::uint64_t kCells = 1 << 16;
struct SharedCells {
  std::atomic<std::uint64_t> num_used;
  std::array<EventCell, kCells> cells;
};

SharedCells* g_cells = nullptr;

SharedCells& shared() {
  RP_ASSERT(g_cells != nullptr);
  return *g_cells;
}

std::uint64_t maker_number(CUcontext context) { return static_cast<std::uint64_t>(getpid()) << 32 | context->number; }

}  // namespace

void share_event_cells() {
  if (g_cells != nullptr) return;
  void* const memory =
      mmap(nullptr, sizeof(SharedCells), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RP_ASSERT(memory != MAP_FAILED);
  g_cells = static_cast<SharedCells*>(memory);
}

EventCell& new_event_cell(CUcontext maker) {
  EventCell& cell = shared().cells.at(shared().num_used.fetch_add(1));
  cell.maker.store(maker_number(maker));
  return cell;
}

CUresult handle_of(const CUevent_st& event, CUipcEventHandle* handle) {
  if ((event.flags & CU_EVENT_INTERPROCESS) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const auto number = static_cast<std::uint64_t>(event.cell - shared().cells.data());
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &number, sizeof(number));
  return CUDA_SUCCESS;
}

CUresult cell_of(const CUipcEventHandle& handle, CUcontext opener, EventCell** cell) {
  std::uint64_t number = 0;
  std::memcpy(&number, &handle, sizeof(number));
  if (number >= shared().num_used.load()) return CUDA_ERROR_INVALID_VALUE;
  *cell = &shared().cells.at(number);
  return (*cell)->maker.load() == maker_number(opener) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

}  // namespace rp::test
