// Measures whether it pays to let the coordinator gather the rows of an embedding that a microbatch
// needs, and add up their gradients, instead of letting a worker upload the whole table.
//
//   embedding_rows [rows] [width] [microbatches] [tokens of a microbatch]     default: 49152 576 8 1024
//
// Does the work of a round for a bf16 embedding at the front of a model, in one thread, with copies
// in place of a bus:
//   table   a worker copies the table in, zeroes fp32 accumulators, gathers each microbatch's rows, adds the rows of
//           its gradients, rounds the accumulators to bf16 and copies them back; the backward uploads the table again
//   rows    the coordinator gathers each microbatch's rows; for the gradients it zeroes the buffer, adds in fp32
//           the rows that occur, and rounds them
// Both variants gather and add the same rows. They differ in what is done to the rest of the table,
// and where. The activation of the rows and its gradient cross the bus in both cases: to and from
// the next stage.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <unordered_map>
#include <vector>

#include "common/median.h"
#include "common/system/clock.h"
#include "kernels/cpu/float16.h"

namespace rp {
namespace {

struct Shape {
  std::size_t rows = 49152;
  std::size_t width = 576;
  std::size_t microbatches = 8;
  std::size_t tokens = 1024;
};

using Table = std::vector<std::uint16_t>;

double ms_since(std::int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-6; }

void add_row(float* to, const std::uint16_t* from, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) to[i] += float_from_bf16(from[i]);
}

void round_row(std::uint16_t* to, const float* from, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) to[i] = bf16_from_float(from[i]);
}

struct Data {
  explicit Data(const Shape& shape)
      : table(shape.rows * shape.width, 0x3f80),
        uploaded(table),
        gradient(table),
        rounded(table),
        sums(shape.rows * shape.width),
        activation(shape.tokens * shape.width, 0x3c00) {
    // Words of a language are not equally frequent: the n-th is drawn with a probability
    // proportional to 1 / n.
    std::mt19937 random(1);
    std::uniform_real_distribution<double> uniform;
    for (std::size_t i = 0; i < shape.microbatches * shape.tokens; ++i) {
      ids.push_back(static_cast<std::size_t>(std::exp(uniform(random) * std::log(static_cast<double>(shape.rows)))) %
                    shape.rows);
    }
  }
  Table table, uploaded, gradient, rounded;
  std::vector<float> sums;
  Table activation;  // of one microbatch, and its gradient
  std::vector<std::size_t> ids;
};

void gather(const Shape& shape, Data& data, const Table& table, std::size_t microbatch) {
  for (std::size_t t = 0; t < shape.tokens; ++t) {
    std::memcpy(data.activation.data() + t * shape.width,
                table.data() + data.ids[microbatch * shape.tokens + t] * shape.width, shape.width * 2);
  }
}

double with_table(const Shape& shape, Data& data) {
  const std::int64_t start = now_ns();
  for (int visit = 0; visit < 2; ++visit) std::memcpy(data.uploaded.data(), data.table.data(), data.table.size() * 2);
  std::memset(data.sums.data(), 0, data.sums.size() * sizeof(float));
  for (std::size_t m = 0; m < shape.microbatches; ++m) {
    gather(shape, data, data.uploaded, m);
    for (std::size_t t = 0; t < shape.tokens; ++t) {
      add_row(data.sums.data() + data.ids[m * shape.tokens + t] * shape.width, data.activation.data() + t * shape.width,
              shape.width);
    }
  }
  round_row(data.rounded.data(), data.sums.data(), data.sums.size());
  std::memcpy(data.gradient.data(), data.rounded.data(), data.rounded.size() * 2);
  return ms_since(start);
}

double with_rows(const Shape& shape, Data& data) {
  const std::int64_t start = now_ns();
  std::memset(data.gradient.data(), 0, data.gradient.size() * 2);
  std::unordered_map<std::size_t, std::size_t> place;  // index into `sums` of each row that occurs
  for (std::size_t m = 0; m < shape.microbatches; ++m) {
    gather(shape, data, data.table, m);
    for (std::size_t t = 0; t < shape.tokens; ++t) {
      const auto [found, is_new] = place.try_emplace(data.ids[m * shape.tokens + t], place.size());
      float* sum = data.sums.data() + found->second * shape.width;
      if (is_new) std::memset(sum, 0, shape.width * sizeof(float));
      add_row(sum, data.activation.data() + t * shape.width, shape.width);
    }
  }
  for (const auto& [row, at] : place) {
    round_row(data.gradient.data() + row * shape.width, data.sums.data() + at * shape.width, shape.width);
  }
  return ms_since(start);
}

void compare(const Shape& shape) {
  Data data(shape);
  std::vector<double> table, rows, ratio;
  for (int repetition = 0; repetition < 8; ++repetition) {
    const double t = with_table(shape, data), r = with_rows(shape, data);
    if (repetition == 0) continue;
    table.push_back(t);
    rows.push_back(r);
    ratio.push_back(t / r);
  }
  const double bytes = 2.0 * static_cast<double>(shape.rows * shape.width);
  std::printf("%zu x %zu, %zu microbatches of %zu tokens\n", shape.rows, shape.width, shape.microbatches, shape.tokens);
  std::printf("  table: %8.1f ms, %.0f MB more over the bus\n", median(table), 3 * bytes * 1e-6);
  std::printf("  rows:  %8.1f ms, on the coordinator; %.2f times as fast\n", median(rows), median(ratio));
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  rp::Shape shape;
  std::size_t* const fields[] = {&shape.rows, &shape.width, &shape.microbatches, &shape.tokens};
  for (int i = 1; i < argc && i <= 4; ++i) *fields[i - 1] = std::strtoull(argv[i], nullptr, 10);
  if (argc > 5 ||
      std::any_of(std::begin(fields), std::end(fields), [](const std::size_t* field) { return *field == 0; })) {
    std::fprintf(stderr, "usage: embedding_rows [rows] [width] [microbatches] [tokens of a microbatch]\n");
    return 2;
  }
  rp::compare(shape);
}
