// random_models FIRST LAST: the random models of these seeds, each as a pipeline of one session with its calls mixed among
// the others', compared with the reference loop bit for bit, and with fp64 where a row's result depends on no other row.
// Exit code 0 if all agree. Under rp-launch with any number of workers, or alone; one seed by itself gives the same bits
// but for the numbers that layers draw.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "roundpipe/session.h"
#include "tests/random/draw.h"
#include "tests/random/random_run.h"

namespace rp::test {
namespace {

using Runs = std::vector<std::unique_ptr<RandomRun>>;

void make_calls(const Runs& runs, Draw& draw, bool (RandomRun::*is_done)() const) {
  std::vector<RandomRun*> open;
  for (const auto& run : runs) open.push_back(run.get());
  while (!open.empty()) {
    const auto chosen = open.begin() + draw.between(0, static_cast<int>(open.size()) - 1);
    (*chosen)->make_next_call();
    if (((*chosen)->*is_done)()) open.erase(chosen);
  }
}

struct Tally {
  int num_different = 0;
  int num_exact = 0;
  int num_imprecise = 0;
  double worst_ratio = 0;  // of the error to plain autograd's
  std::uint64_t worst_seed = 0;
};

void judge(RandomRun& run, Tally& tally) {
  const RandomModel& model = run.model();
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(model.seed), model.description.c_str());
  const std::string differences = run.compare_with_loop();
  if (!differences.empty()) {
    ++tally.num_different;
    std::printf("SEED %llu DIFFERS from the reference loop:\n%s", static_cast<unsigned long long>(model.seed), differences.c_str());
  }
  const auto precision = run.precision();
  if (!precision) return;
  ++tally.num_exact;
  if (const double ratio = precision->ours / precision->plain; precision->plain > 0 && ratio > tally.worst_ratio) {
    tally.worst_ratio = ratio;
    tally.worst_seed = model.seed;
  }
  if (precision->ours <= 2 * precision->plain) return;
  ++tally.num_imprecise;
  std::printf("SEED %llu: its gradient is %.3g from that in fp64, plain autograd's %.3g\n",
              static_cast<unsigned long long>(model.seed), precision->ours, precision->plain);
}

int run(int argc, char** argv) {
  Session session(argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: random_models FIRST_SEED LAST_SEED\n");
    return 2;
  }
  at::set_num_threads(1);  // as many as the workers have: some sums depend on it
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10), last = std::strtoull(argv[2], nullptr, 10);
  Runs runs;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    runs.push_back(std::make_unique<RandomRun>(session, seed));
  }
  session.start();
  Draw draw(first);
  make_calls(runs, draw, &RandomRun::has_made_first_step);
  for (const auto& run : runs) run->keep_gradients();
  make_calls(runs, draw, &RandomRun::is_done);
  Tally tally;
  for (const auto& run : runs) judge(*run, tally);
  std::printf("%zu random models, seeds %s to %s, %d workers: %d differ from the reference loop; %d compared with fp64, largest error "
              "%.2f times plain autograd's (seed %llu), %d of them above 2\n",
              runs.size(), argv[1], argv[2], session.num_workers(), tally.num_different, tally.num_exact, tally.worst_ratio,
              static_cast<unsigned long long>(tally.worst_seed), tally.num_imprecise);
  return tally.num_different + tally.num_imprecise > 0 ? 1 : 0;
}

}  // namespace
}  // namespace rp::test

int main(int argc, char** argv) { return rp::test::run(argc, argv); }
