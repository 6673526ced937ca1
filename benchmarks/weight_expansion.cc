// Measures the kernels for quantised weights on the CPU: GB/s of the bf16 values that an expansion
// writes or a quantiser reads, for each format and instruction set, in one thread and in two, next
// to memcpy of as many values.
//
//   weight_expansion [rows] [columns]     default: 8192 8192, more than a cache holds
//
// A round calls everything once; the figures are medians of seven rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/median.h"
#include "common/system/clock.h"
#include "kernels/cpu/float16.h"
#include "kernels/cpu/quantised/weight_kernels.h"

namespace rp {
namespace {

constexpr int kRounds = 7;

struct Format {
  const char* name;
  WeightFormat format;
};
constexpr Format kFormats[] = {{"nf4", WeightFormat::kNf4},
                               {"nf4-double", WeightFormat::kNf4Double},
                               {"mxfp4", WeightFormat::kMxfp4},
                               {"fp8-blocks", WeightFormat::kFp8Blocks},
                               {"fp8-tensor", WeightFormat::kFp8Tensor}};

// A piece of work on the elements [begin, end), and the seconds of its rounds.
struct Work {
  std::string name;
  int threads;
  std::function<void(std::int64_t begin, std::int64_t end)> run;
  std::vector<double> seconds{};
};

double seconds_of(const Work& work, std::int64_t elements) {
  const std::int64_t start = now_ns();
  std::vector<std::thread> others;
  const std::int64_t share = elements / work.threads;
  for (int i = 1; i < work.threads; ++i) others.emplace_back(work.run, i * share, (i + 1) * share);
  work.run(0, share);
  for (std::thread& other : others) other.join();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

std::vector<std::uint16_t> random_weights(std::int64_t elements) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> some(1 << 16);
  for (float& value : some) value = normal(generator);
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = bf16_from_float(some[i % some.size()]);
  return weights;
}

int measure(std::int64_t rows, std::int64_t columns) {
  const std::int64_t elements = rows * columns;
  const std::vector<std::uint16_t> weights = random_weights(elements);
  std::vector<std::uint16_t> values(weights.size());
  std::vector<std::vector<std::byte>> quantised;
  std::vector<Work> all;
  for (const int threads : {1, 2}) {
    all.push_back({"memcpy", threads, [&](std::int64_t begin, std::int64_t end) {
                     std::memcpy(values.data() + begin, weights.data() + begin,
                                 static_cast<std::size_t>(end - begin) * 2);
                   }});
  }
  quantised.reserve(std::size(kFormats));
  for (const Format& each : kFormats) {
    const QuantisedShape shape{each.format, 1, rows, columns};
    std::byte* bytes = quantised.emplace_back(QuantisedLayout(shape).num_bytes).data();
    for (const models::WeightKernels* table : models::usable_weight_kernels()) {
      const std::string name = std::string(each.name) + " " + table->name;
      all.push_back({"quantise " + name, 1, [=, &weights](std::int64_t, std::int64_t) {
                       if (!quantise_weights(*table, DType::kBFloat16, weights.data(), shape, 0, bytes)) std::abort();
                     }});
      for (const int threads : {1, 2}) {
        all.push_back({"expand " + name, threads, [=, &values](std::int64_t begin, std::int64_t end) {
                         expand_weights(*table, DType::kBFloat16, {shape, bytes}, values.data(), begin, end);
                       }});
      }
    }
  }
  for (int round = 0; round <= kRounds; ++round) {
    for (Work& work : all) {
      const double seconds = seconds_of(work, elements);
      if (round > 0) work.seconds.push_back(seconds);  // the first one touches the memory
    }
  }
  for (const Work& work : all) {
    const double copy = median(all[static_cast<std::size_t>(work.threads) - 1].seconds), its = median(work.seconds);
    std::printf("%-30s %d thread%s %6.2f GB/s  %5.2f of memcpy\n", work.name.c_str(), work.threads,
                work.threads == 1 ? " " : "s", static_cast<double>(elements) * 2e-9 / its, copy / its);
  }
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  return rp::measure(argc > 1 ? std::atoll(argv[1]) : 8192, argc > 2 ? std::atoll(argv[2]) : 8192);
}
