// tests/fuzz/mutator.h
// Derives new inputs from those of a corpus, without interpreting them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rp::fuzz {

// Returns the same input for the same corpus, dictionary, seed and number, so that a failure can be
// reproduced. Inputs of make() have at most kMaxMutatedBytes bytes, those of systematic() up to
// kMaxNestedBytes.
class Mutator {
 public:
  static constexpr std::size_t kMaxMutatedBytes = 4096;
  static constexpr std::size_t kMaxCuts = 256;
  static constexpr std::size_t kMaxNestedBytes = std::size_t{64} << 10;

  // REQUIRES: the corpus is not empty.
  Mutator(std::vector<std::string> corpus, std::vector<std::string> dictionary)
      : corpus_(std::move(corpus)), dictionary_(std::move(dictionary)) {}

  // Returns a member of the corpus with one to eight changes: bits, bytes, extreme numbers, words
  // of the dictionary, pieces that are removed, repeated or inserted from another member.
  [[nodiscard]] std::string make(std::uint64_t seed, std::uint64_t number) const;

  // The inputs that must not be left to chance. Each member of the corpus is cut off at each byte,
  // or at kMaxCuts places. Each word of the dictionary is repeated so often that anything that
  // nests is nested deeply, alone and in the middle of the first member.
  [[nodiscard]] std::uint64_t num_systematic() const;
  // REQUIRES: number < num_systematic().
  [[nodiscard]] std::string systematic(std::uint64_t number) const;

 private:
  std::vector<std::string> corpus_;
  std::vector<std::string> dictionary_;
};

// Returns the words of a dictionary in libFuzzer's format: one "text" per line, with \\, \" and
// \xNN; # begins a comment. Throws std::runtime_error with file and line for any other line.
[[nodiscard]] std::vector<std::string> read_dictionary(const std::filesystem::path& file);

}  // namespace rp::fuzz
