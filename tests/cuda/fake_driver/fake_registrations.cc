#include "tests/cuda/fake_driver/fake_registrations.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "common/check.h"
#include "tests/cuda/fake_driver/fake_mappings.h"

namespace rp::test {

namespace {

// A part of a file that is being registered. Its length is 0 if there is none.
struct Registration {
  std::uint64_t device;
  std::uint64_t inode;
  std::uint64_t begin;
  std::uint64_t end;
};

struct SharedRegistrations {
  pthread_mutex_t mutex;
  int num_met;
  std::array<Registration, 64> under_way;
};

SharedRegistrations* g_shared = nullptr;

class SharedLock {
 public:
  SharedLock() { RP_ASSERT(pthread_mutex_lock(&g_shared->mutex) == 0); }
  ~SharedLock() { pthread_mutex_unlock(&g_shared->mutex); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;
};

// Returns false if another registration of some of these pages is in progress, which continues.
bool takes_its_time_alone(const Registration& registration) {
  Registration* place = nullptr;
  {
    const SharedLock lock;
    for (Registration& other : g_shared->under_way) {
      const bool is_same_file = other.device == registration.device && other.inode == registration.inode;
      if (is_same_file && other.begin < registration.end && registration.begin < other.end) {
        ++g_shared->num_met;
        return false;
      }
      if (other.begin == other.end) place = &other;
    }
    RP_ASSERT(place != nullptr);
    *place = registration;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  const SharedLock lock;
  *place = {};
  return true;
}

}  // namespace

void share_registrations() {
  if (g_shared != nullptr) return;
  void* const memory =
      mmap(nullptr, sizeof(SharedRegistrations), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RP_ASSERT(memory != MAP_FAILED);
  g_shared = static_cast<SharedRegistrations*>(memory);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&g_shared->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

int num_met_registrations() {
  const SharedLock lock;
  return g_shared->num_met;
}

bool FakeRegistrations::is_refused_once_more(CUcontext context, void* memory) {
  const std::lock_guard lock(mutex_);
  const auto [left, is_new] = refusals_left_.try_emplace({context, memory}, 0);
  if (is_new) left->second = static_cast<int>(random_() % (static_cast<unsigned>(options_.max_refusals) + 1));
  return left->second > 0 && left->second-- > 0;
}

CUresult FakeRegistrations::refusal(CUcontext context, void* memory, std::uint64_t bytes) {
  if (refuses_all_.load()) return CUDA_ERROR_OPERATING_SYSTEM;
  if (bytes > options_.max_pin_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (options_.max_refusals > 0 && is_refused_once_more(context, memory)) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!options_.refuses_company) return CUDA_SUCCESS;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const MappedRange range = mapped_range(begin, begin + bytes);
  if (range.inode == 0) return CUDA_SUCCESS;
  return takes_its_time_alone({range.device, range.inode, range.offset, range.offset + bytes})
             ? CUDA_SUCCESS
             : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace rp::test
