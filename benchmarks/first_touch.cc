// Measures the first touch of a host store. The store is created and populated, as before the first
// step of a run, with 1, 2, ... threads in turns. Also measures a first use by page faults in one
// thread, as it would be without populating.
//
//   first_touch [--gib N] [--rounds N] [--store shm|memfd]     (defaults: 16 GiB, 3 rounds, the store that a run uses)
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <cxxopts.hpp>

#include "common/program_main.h"
#include "common/system/clock.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "hoststore/memory/page_policy.h"
#include "hoststore/store.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

// Returns the catalogue of a model with one bf16 matrix per layer and 16 bytes per parameter.
Catalogue catalogue_of(std::uint64_t store_bytes) {
  constexpr std::uint64_t kBytesPerParameter = 16;
  constexpr std::int64_t kLayers = 16;
  const auto elements = static_cast<std::int64_t>(store_bytes / kBytesPerParameter) / kLayers;
  std::vector<LayerRequest> layers;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    layers.push_back(
        {.name = cat("layer ", i), .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {elements}}}});
  }
  return Catalogue::lay_out(layers, 1, false);
}

struct Figures {
  double create_s = 0;
  double touch_s = 0;
};

double seconds_since(std::int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) / 1e9; }

// Touches a byte of each page, in one thread.
void fault_in(Store& store, const Catalogue& catalogue) {
  constexpr std::uint64_t kPage = 4096;
  const auto touch = [](std::byte* data, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kPage) *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  };
  touch(store.parameters(0), catalogue.parameter_bytes());
  touch(reinterpret_cast<std::byte*>(store.state(0)), catalogue.state_bytes());
  touch(store.gradients(0), catalogue.gradient_bytes());
}

// `num_threads`: 0 for page faults.
Figures measure(const StoreSettings& settings, const Catalogue& catalogue, int num_threads) {
  const std::int64_t start_ns = now_ns();
  const auto store = Store::create(settings, catalogue);
  Figures figures{.create_s = seconds_since(start_ns)};
  const std::int64_t created_ns = now_ns();
  if (num_threads == 0) {
    fault_in(*store, catalogue);
  } else {
    store->populate_ahead(num_threads);
    store->wait_until_populated();
  }
  figures.touch_s = seconds_since(created_ns);
  return figures;
}

int run(int argc, char** argv) {
  cxxopts::Options options("first_touch", "Time to create and populate a host store");
  options.add_options()("gib", "of the store", cxxopts::value<std::uint64_t>()->default_value("16"))(
      "rounds", "turns of each", cxxopts::value<int>()->default_value("3"))(
      "store", "shm or memfd", cxxopts::value<std::string>()->default_value(""));
  const auto words = options.parse(argc, argv);
  const Catalogue catalogue = catalogue_of(words["gib"].as<std::uint64_t>() << 30);
  StoreSettings settings;
  settings.backing = words["store"].as<std::string>();
  const double gigabytes =
      static_cast<double>(catalogue.parameter_bytes() + catalogue.state_bytes() + catalogue.gradient_bytes()) / 1e9;
  std::vector<int> threads = {0};
  for (int num = 1; num <= population_threads(usable_cores()); num *= 2) threads.push_back(num);
  std::vector<std::vector<double>> touch(threads.size());
  const char* const pages[] = {"never", "where asked for", "always"};
  std::printf("%.1f GB, huge pages of memory files: %s\n", gigabytes, pages[static_cast<int>(shared_huge_pages())]);
  for (int round = 0; round < words["rounds"].as<int>(); ++round) {
    for (std::size_t i = 0; i < threads.size(); ++i) {
      const Figures figures = measure(settings, catalogue, threads[i]);
      touch[i].push_back(figures.touch_s);
      std::printf("round %d, %s: created in %.2f s, touched in %.2f s, %.2f GB/s\n", round + 1,
                  threads[i] == 0 ? "page faults" : cat(threads[i], threads[i] == 1 ? " thread" : " threads").c_str(),
                  figures.create_s, figures.touch_s, gigabytes / figures.touch_s);
    }
  }
  for (std::vector<double>& times : touch) std::sort(times.begin(), times.end());
  const double one = touch[1][touch[1].size() / 2];
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const double median = touch[i][touch[i].size() / 2];
    std::printf("median, %d threads: %.2f s, %.2f times as fast as with one\n", threads[i], median, one / median);
  }
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  return rp::run_program("first_touch", [&] { return rp::run(argc, argv); });
}
