#include "train/data/shuffle.h"

#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "common/random_seed.h"

namespace rp {
namespace {

class Xoshiro256 {
 public:
  Xoshiro256(std::uint64_t seed, std::uint64_t stream) {
    std::uint64_t state = seed;
    state = splitmix64(state) ^ stream;
    for (std::uint64_t& word : words_) word = splitmix64(state);
  }

  // Returns a number from 0 to bound - 1, all equally likely (Lemire's method).
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
      const unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
      if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64);
    }
  }

 private:
  std::uint64_t next() {
    const std::uint64_t result = std::rotl(words_[1] * 5, 7) * 9;
    const std::uint64_t shifted = words_[1] << 17;
    words_[2] ^= words_[0];
    words_[3] ^= words_[1];
    words_[1] ^= words_[2];
    words_[0] ^= words_[3];
    words_[2] ^= shifted;
    words_[3] = std::rotl(words_[3], 45);
    return result;
  }

  std::array<std::uint64_t, 4> words_{};
};

}  // namespace

std::vector<std::uint64_t> shuffled(std::uint64_t count, std::uint64_t seed, std::uint64_t stream) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  Xoshiro256 random(seed, stream);
  for (std::uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace rp
