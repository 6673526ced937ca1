// tests/fuzz/mutator.h
// Makes new inputs from those of a corpus, without knowing what they mean.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rp::fuzz {

// Gives the same input for the same corpus, dictionary, seed and number, so that a failure can be made again. Inputs of
// make() have at most kMaxMutatedBytes bytes, those of systematic() up to kMaxNestedBytes.
class Mutator {
 public:
  static constexpr std::size_t kMaxMutatedBytes = 4096;
  static constexpr std::size_t kMaxCuts = 256;
  static constexpr std::size_t kMaxNestedBytes = std::size_t{64} << 10;

  // REQUIRES: corpus is not empty.
  Mutator(std::vector<std::string> corpus, std::vector<std::string> dictionary)
      : corpus_(std::move(corpus)), dictionary_(std::move(dictionary)) {}

  // A member of the corpus with one to eight changes: bits, bytes, numbers at their extremes, words of the dictionary,
  // pieces taken out, repeated or put in from another member.
  [[nodiscard]] std::string make(std::uint64_t seed, std::uint64_t number) const;

  // What no chance should leave out: each member of the corpus cut off at each byte, or at kMaxCuts places, and each
  // word of the dictionary so often behind itself that whatever nests is nested deeply, alone and in the middle of the
  // first member.
  [[nodiscard]] std::uint64_t num_systematic() const;
  // REQUIRES: number < num_systematic().
  [[nodiscard]] std::string systematic(std::uint64_t number) const;

 private:
  std::vector<std::string> corpus_;
  std::vector<std::string> dictionary_;
};

// The words of a dictionary in libFuzzer's format: "text" a line, with \\, \" and \xNN; # begins a comment. Throws
// std::runtime_error with file and line for another one.
[[nodiscard]] std::vector<std::string> read_dictionary(const std::filesystem::path& file);

}  // namespace rp::fuzz
