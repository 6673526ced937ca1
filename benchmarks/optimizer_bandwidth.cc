// benchmarks/optimizer_bandwidth.cc
// How near the fused optimizer pass comes to the bandwidth of the memory, and what fusing gains.
//
//   optimizer_bandwidth [GiB of one fp32 array, default 1] [repetitions, default 7]
//
// Needs 5 GiB of memory for arrays of 1 GiB. In every repetition each pass runs once, one after the other, so that a
// busy machine slows all alike; the figures are medians, the ratios medians of the ratios within a repetition.
#include <sys/mman.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/clock.h"
#include "optimizer/adamw.h"
#include "optimizer/float16.h"
#include "optimizer/kernels.h"

namespace rp {
namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define RP_EVERY_INSTRUCTION_SET __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RP_EVERY_INSTRUCTION_SET
#endif

constexpr std::size_t kChunkElements = 65'536;

// Memory of its own pages, released at the end.
template <typename T>
class Pages {
 public:
  Pages(std::size_t num_elements, bool huge) : bytes_(num_elements * sizeof(T)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("optimizer_bandwidth: mmap");
      std::exit(69);
    }
    madvise(memory, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    data_ = static_cast<T*>(memory);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  T* data() { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

// The arrays of one block: 20 bytes per parameter, 16 of which the fused pass needs.
struct Arrays {
  Arrays(std::size_t num_elements, bool huge)
      : n(num_elements), gradient(n, huge), master(n, huge), m(n, huge), v(n, huge), working(n, huge),
        gradient_fp32(n, huge) {}

  std::size_t n;
  Pages<std::uint16_t> gradient;
  Pages<float> master, m, v;
  Pages<std::uint16_t> working;
  Pages<float> gradient_fp32;
};

template <typename Pass>
void for_each_chunk(std::size_t n, ThreadTeam& team, const Pass& pass) {
  team.run((n + kChunkElements - 1) / kChunkElements, [&](std::size_t chunk) {
    const std::size_t begin = chunk * kChunkElements;
    pass(begin, std::min(begin + kChunkElements, n));
  });
}

void fill(Arrays& a, ThreadTeam& team) {
  for_each_chunk(a.n, team, [&](std::size_t begin, std::size_t end) {
    std::uint64_t random = begin + 1;
    for (std::size_t i = begin; i < end; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      const float x = static_cast<float>(static_cast<std::int64_t>(random) >> 40) * 0x1p-23F;
      a.gradient.data()[i] = bf16_from_float(x * 0.01F);
      a.master.data()[i] = x;
      a.m.data()[i] = x * 0.001F;
      a.v.data()[i] = x * x * 1e-4F;
      a.working.data()[i] = 0;
      a.gradient_fp32.data()[i] = 0;
    }
  });
}

RP_EVERY_INSTRUCTION_SET void triad(float* a, const float* b, float s, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) a[i] += s * b[i];
}

double seconds_of(const auto& pass) {
  const std::int64_t start = now_ns();
  pass();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(Arrays& a, int num_threads, int repetitions, const char* pages) {
  ThreadTeam team(num_threads);
  const AdamWStep step = AdamWStep::of({.learning_rate = 1e-4, .weight_decay = 0.01}, 10);
  const void* uses[] = {a.gradient.data()};
  const BlockGradients gradients{.uses = uses, .num_uses = 1, .format = FloatFormat::kBf16, .num_elements = a.n};
  const BlockState state{.old_master = a.master.data(), .master = a.master.data(), .m = a.m.data(), .v = a.v.data(),
                         .working = a.working.data(), .working_format = FloatFormat::kBf16, .num_elements = a.n};
  std::vector<std::vector<double>> rates(1 + usable_kernels().size()), ratios = rates;
  for (int r = 0; r <= repetitions; ++r) {
    const double triad_seconds = seconds_of([&] {
      for_each_chunk(a.n, team, [&](std::size_t begin, std::size_t end) {
        triad(a.master.data() + begin, a.m.data() + begin, 1e-9F, end - begin);
      });
    });
    const double triad_rate = 12e-9 * static_cast<double>(a.n) / triad_seconds;
    if (r > 0) rates[0].push_back(triad_rate);
    for (std::size_t k = 0; k < usable_kernels().size(); ++k) {
      const Kernels& kernels = *usable_kernels()[k];
      const double seconds = seconds_of([&] {
        for_each_chunk(a.n, team, [&](std::size_t begin, std::size_t end) {
          kernels.update(state, gradients, step, begin, end);
        });
      });
      const double rate = 28e-9 * static_cast<double>(a.n) / seconds;
      if (r > 0) {
        rates[k + 1].push_back(rate);
        ratios[k + 1].push_back(rate / triad_rate);
      }
    }
  }
  std::printf("%s pages, %d threads: triad %.1f GB/s", pages, num_threads, median(rates[0]));
  for (std::size_t k = 1; k < rates.size(); ++k) {
    std::printf("; %s %.1f GB/s (%.3f)", usable_kernels()[k - 1]->name, median(rates[k]), median(ratios[k]));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  const double gib = argc > 1 ? std::atof(argv[1]) : 1.0;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 7;
  const std::size_t n = static_cast<std::size_t>(gib * 0x1p28);
  for (const bool huge : {false, true}) {
    rp::Arrays arrays(n, huge);
    {
      rp::ThreadTeam team(2);
      rp::fill(arrays, team);
    }
    for (const int threads : {1, 2}) rp::compare(arrays, threads, repetitions, huge ? "huge" : "ordinary");
  }
}
