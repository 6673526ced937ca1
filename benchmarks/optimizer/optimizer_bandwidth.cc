// benchmarks/optimizer/optimizer_bandwidth.cc
// Measures how near the fused optimizer pass comes to the bandwidth of the memory, and the gain of
// fusing.
//
//   optimizer_bandwidth [GiB of one fp32 array, default 1] [repetitions, default 9]
//
// Needs 5 GiB of memory for arrays of 1 GiB. With the same threads on the same arrays it runs:
//   triad         a[i] += s * b[i] in fp32: 12 bytes per element
//   fused         the product's pass with each instruction set of this machine: 28 bytes per parameter
//   with journal  the pass such that another process can finish it (optimizer/update_journal.h): the same bytes
//   three passes  gradient cast to fp32, fp32 update, weight cast to bf16: 40 bytes, or 46 with ordinary stores, which
//                 read the data that they overwrite. The update is the product's own loop, including prefetch.
//   LibTorch      its _fused_adamw_ and two copy_(), 46 bytes; not in a build without LibTorch
// In every repetition each of them runs once, one after the other, so that a busy machine slows all
// of them alike. Times are medians; ratios are medians of the ratios within a repetition.
#include <sys/mman.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#ifdef RP_WITH_LIBTORCH
#include "benchmarks/optimizer/libtorch_adamw.h"
#endif
#include "common/median.h"
#include "common/system/clock.h"
#include "kernels/cpu/float16.h"
#include "kernels/cpu/update_kernels.h"
#include "optimizer/update.h"

namespace rp {
namespace {

#if defined(__x86_64__)
#define RP_EVERY_INSTRUCTION_SET __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RP_EVERY_INSTRUCTION_SET
#endif

// Memory in pages of its own, released by the destructor.
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

// The arrays of one weight group: 20 bytes per parameter, 16 of which the fused pass needs.
struct Arrays {
  Arrays(std::size_t num_elements, bool huge)
      : n(num_elements),
        gradient(n, huge),
        master(n, huge),
        m(n, huge),
        v(n, huge),
        working(n, huge),
        gradient_fp32(n, huge) {}

  std::size_t n;
  Pages<std::uint16_t> gradient;
  Pages<float> master, m, v;
  Pages<std::uint16_t> working;
  Pages<float> gradient_fp32;
};

template <typename Pass>
void for_each_chunk(std::size_t n, ThreadTeam& team, const Pass& pass) {
  team.run(num_chunks(n), [&](std::size_t chunk) {
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

RP_EVERY_INSTRUCTION_SET void cast_gradient(float* to, const std::uint16_t* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = float_from_bf16(from[i]);
}

RP_EVERY_INSTRUCTION_SET void cast_weights(std::uint16_t* to, const float* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = bf16_from_float(from[i]);
}

// The casts with streaming stores, for a multiple of 8 finite numbers. Four numbers at a time are
// fast enough for the memory.
#if defined(__x86_64__)
void stream_gradient(float* to, const std::uint16_t* from, std::size_t n) {
  const __m128i zero = _mm_setzero_si128();
  for (std::size_t i = 0; i < n; i += 8) {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_unpacklo_epi16(zero, bits));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + 4), _mm_unpackhi_epi16(zero, bits));
  }
  _mm_sfence();
}

__m128i rounded_upper_halves(const float* from) {
  const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  return _mm_srai_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd), 16);
}

void stream_weights(std::uint16_t* to, const float* from, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 8) {
    const __m128i packed = _mm_packs_epi32(rounded_upper_halves(from + i), rounded_upper_halves(from + i + 4));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), packed);
  }
  _mm_sfence();
}
#endif

// A variant to be timed: its stages one after the other, each over the whole arrays, and the bytes
// per parameter by which its bandwidth is computed.
struct Candidate {
  std::string name;
  double bytes_per_parameter;
  std::vector<std::function<void(std::size_t begin, std::size_t end)>> stages{};
  std::function<void(int num_threads)> whole{};  // alternative to the stages: runs with threads of its own
  std::function<void(ThreadTeam&)> by_team{};    // another alternative
};

const UpdateStep kStep = update_step_of(AdamW{.learning_rate = 1e-4, .weight_decay = 0.01}, 10);

Candidate fused(Arrays& a, const UpdateKernels& kernels) {
  return {std::string("fused, ") + kernels.name, 28, {[&a, &kernels](std::size_t begin, std::size_t end) {
            const void* uses[] = {a.gradient.data()};
            kernels.update({.old_master = a.master.data(),
                            .master = a.master.data(),
                            .m = a.m.data(),
                            .v = a.v.data(),
                            .working = a.working.data(),
                            .num_elements = a.n},
                           {.uses = uses, .num_uses = 1, .num_elements = a.n}, kStep, begin, end);
          }}};
}

Candidate with_journal(Arrays& a, Pages<std::byte>& memory, int num_threads) {
  const auto pass = std::make_shared<std::uint64_t>(0);
  return {"fused, with journal", 28, {}, {}, [&a, &memory, pass, num_threads](ThreadTeam& team) {
            UpdateJournal journal(memory.data(), num_chunks(a.n), num_threads);
            const void* uses[] = {a.gradient.data()};
            const UpdateSpan whole{.begin = 0, .end = a.n, .step = kStep};
            update_group({.old_master = a.master.data(),
                          .master = a.master.data(),
                          .m = a.m.data(),
                          .v = a.v.data(),
                          .working = a.working.data(),
                          .num_elements = a.n},
                         {.uses = uses, .num_uses = 1, .num_elements = a.n}, {&whole, 1}, team, journal, ++*pass);
          }};
}

using CastGradient = void (*)(float* to, const std::uint16_t* from, std::size_t n);
using CastWeights = void (*)(std::uint16_t* to, const float* from, std::size_t n);

Candidate three_passes(Arrays& a, const char* name, double bytes, CastGradient gradient, CastWeights weights) {
  return {name,
          bytes,
          {[&a, gradient](std::size_t begin, std::size_t end) {
             gradient(a.gradient_fp32.data() + begin, a.gradient.data() + begin, end - begin);
           },
           [&a](std::size_t begin, std::size_t end) {
             const void* uses[] = {a.gradient_fp32.data()};
             update_kernels().update({.old_master = a.master.data(),
                                      .master = a.master.data(),
                                      .m = a.m.data(),
                                      .v = a.v.data(),
                                      .num_elements = a.n},
                                     {.uses = uses, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = a.n},
                                     kStep, begin, end);
           },
           [&a, weights](std::size_t begin, std::size_t end) {
             weights(a.working.data() + begin, a.master.data() + begin, end - begin);
           }}};
}

// Returns the variants: the triad first, then the fused pass of the best instruction set, then the
// others.
std::vector<Candidate> candidates(Arrays& a, Pages<std::byte>& journal, int num_threads) {
  std::vector<Candidate> all;
  all.push_back({"triad", 12, {[&a](std::size_t begin, std::size_t end) {
                   triad(a.master.data() + begin, a.m.data() + begin, 1e-9F, end - begin);
                 }}});
  for (const UpdateKernels* kernels : usable_update_kernels()) all.push_back(fused(a, *kernels));
  all.push_back(with_journal(a, journal, num_threads));
  all.push_back(three_passes(a, "three passes, ordinary stores", 46, cast_gradient, cast_weights));
#if defined(__x86_64__)
  all.push_back(three_passes(a, "three passes, streaming stores", 40, stream_gradient, stream_weights));
#endif
#ifdef RP_WITH_LIBTORCH
  const AdamWArrays arrays{.n = a.n,
                           .gradient = a.gradient.data(),
                           .gradient_fp32 = a.gradient_fp32.data(),
                           .master = a.master.data(),
                           .m = a.m.data(),
                           .v = a.v.data(),
                           .working = a.working.data()};
  all.push_back({"LibTorch, _fused_adamw_ and casts", 46, {}, [arrays](int num_threads) {
                   libtorch_adamw(arrays, num_threads);
                 }});
#endif
  return all;
}

double seconds_of(const Candidate& candidate, std::size_t n, ThreadTeam& team) {
  const std::int64_t start = now_ns();
  if (candidate.whole) candidate.whole(team.num_threads());
  if (candidate.by_team) candidate.by_team(team);
  for (const auto& stage : candidate.stages) for_each_chunk(n, team, stage);
  return static_cast<double>(now_ns() - start) * 1e-9;
}

void compare(Arrays& a, int num_threads, int repetitions, const char* pages) {
  ThreadTeam team(num_threads);
  Pages<std::byte> journal(UpdateJournal::bytes(num_chunks(a.n), num_threads), false);
  const std::vector<Candidate> all = candidates(a, journal, num_threads);
  struct Measured {
    std::vector<double> seconds, of_triad_rate, of_fused_time;
  };
  std::vector<Measured> measured(all.size());
  for (int r = -1; r < repetitions; ++r) {  // the first repetition is a warm-up
    std::vector<double> seconds;
    for (const Candidate& candidate : all) seconds.push_back(seconds_of(candidate, a.n, team));
    for (std::size_t i = 0; r >= 0 && i < all.size(); ++i) {
      measured[i].seconds.push_back(seconds[i]);
      measured[i].of_triad_rate.push_back(all[i].bytes_per_parameter / seconds[i] * seconds[0] / 12);
      measured[i].of_fused_time.push_back(seconds[i] / seconds[1]);
    }
  }
  std::printf("%s pages, %d thread%s, %zu Mi parameters, %d repetitions\n", pages, num_threads,
              num_threads == 1 ? "" : "s", a.n >> 20, repetitions);
  std::printf("  %-33s %8s %8s %8s %9s %12s\n", "", "bytes", "ms", "GB/s", "of triad", "fused = 1.00");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double seconds = median(measured[i].seconds);
    std::printf("  %-33s %8.0f %8.1f %8.1f %8.1f%% %12.2f\n", all[i].name.c_str(), all[i].bytes_per_parameter,
                seconds * 1e3, all[i].bytes_per_parameter * static_cast<double>(a.n) / seconds * 1e-9,
                100 * median(measured[i].of_triad_rate), median(measured[i].of_fused_time));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  const double gib = argc > 1 ? std::atof(argv[1]) : 1.0;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 9;
  const std::size_t n = static_cast<std::size_t>(gib * 0x1p28) / 8 * 8;
  if (argc > 3 || n == 0 || repetitions < 1) {
    std::fprintf(stderr, "usage: optimizer_bandwidth [GiB of one fp32 array] [repetitions]\n");
    return 2;
  }
  for (const bool huge : {false, true}) {
    rp::Arrays arrays(n, huge);
    {
      rp::ThreadTeam team(2);
      rp::fill(arrays, team);
    }
    for (const int num_threads : {1, 2}) rp::compare(arrays, num_threads, repetitions, huge ? "huge" : "ordinary");
  }
}
