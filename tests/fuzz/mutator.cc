#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "common/text.h"

namespace rp::fuzz {
namespace {

// SplitMix64 (Steele and others, 2014), which is cheap to seed. Each input has its own seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Returns a number below `end`. REQUIRES: end > 0.
  std::size_t below(std::size_t end) { return next() % end; }

 private:
  std::uint64_t state_;
};

constexpr std::array<std::string_view, 22> kNumbers = {"0",
                                                       "-0",
                                                       "-1",
                                                       "1",
                                                       "2",
                                                       "127",
                                                       "128",
                                                       "255",
                                                       "256",
                                                       "65535",
                                                       "65536",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967295",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "18446744073709551616",
                                                       "1e308",
                                                       "1e-400",
                                                       "0.1"};
constexpr std::array<std::uint64_t, 9> kWords = {0,           1,           0x7f,      0xff,      0x7fff'ffff,
                                                 0x8000'0000, 0xffff'ffff, INT64_MAX, UINT64_MAX};

using Corpus = std::vector<std::string>;

// Makes one random change to `text`.
class Change {
 public:
  Change(Random& random, std::string& text, const Corpus& corpus, const Corpus& dictionary)
      : random_(random), text_(text), corpus_(corpus), dictionary_(dictionary) {}

  void apply() {
    switch (random_.below(12)) {
      case 0: return flip_bit();
      case 1: return set_byte();
      case 2: return insert_byte();
      case 3: return remove_piece();
      case 4: return insert(some_piece(text_));
      case 5: return insert_word();
      case 6: return overwrite_word();
      case 7: return change_number();
      case 8: return overwrite_binary();
      case 9: return insert(some_piece(some(corpus_)));
      case 10: return repeat_piece();
      default: return splice();
    }
  }

 private:
  const std::string& some(const Corpus& list) { return list[random_.below(list.size())]; }
  std::size_t place() { return random_.below(text_.size() + 1); }  // may be the end
  std::string some_piece(const std::string& of) {
    if (of.empty()) return {};
    const std::size_t begin = random_.below(of.size());
    return of.substr(begin, 1 + random_.below(std::min<std::size_t>(64, of.size() - begin)));
  }
  void insert(const std::string& piece) { text_.insert(place(), piece); }
  void insert_byte() { text_.insert(place(), 1, static_cast<char>(random_.next())); }
  void flip_bit() {
    if (text_.empty()) return insert_byte();
    char& byte = text_[random_.below(text_.size())];
    byte = static_cast<char>(byte ^ (1 << random_.below(8)));
  }
  void set_byte() {
    if (text_.empty()) return insert_byte();
    text_[random_.below(text_.size())] = static_cast<char>(random_.next());
  }
  void remove_piece() {
    if (!text_.empty()) text_.erase(random_.below(text_.size()), 1 + random_.below(32));
  }
  void insert_word() {
    if (!dictionary_.empty()) insert(some(dictionary_));
  }
  void overwrite(std::string_view piece) {
    const std::size_t at = place();
    text_.replace(at, std::min(piece.size(), text_.size() - at), piece);
  }
  void overwrite_word() {
    if (!dictionary_.empty()) overwrite(some(dictionary_));
  }
  void overwrite_binary() {
    const std::uint64_t value = kWords[random_.below(kWords.size())] + random_.below(2);
    std::array<char, 8> bytes{};
    std::memcpy(bytes.data(), &value, bytes.size());
    overwrite({bytes.data(), std::size_t{1} << random_.below(4)});
  }
  // Changes the first run of digits after a random place.
  void change_number() {
    const std::size_t begin = text_.find_first_of("0123456789", place());
    if (begin == std::string::npos) return insert_word();
    const std::size_t end = std::min(text_.find_first_not_of("0123456789.", begin), text_.size());
    text_.replace(begin, end - begin, kNumbers[random_.below(kNumbers.size())]);
  }
  void repeat_piece() {
    const std::string piece = random_.below(2) == 0 || dictionary_.empty() ? some_piece(text_) : some(dictionary_);
    std::string repeated;
    for (std::size_t times = std::size_t{1} << random_.below(11);
         times > 0 && repeated.size() < Mutator::kMaxMutatedBytes; --times)
      repeated += piece;
    insert(repeated);
  }
  void splice() {
    const std::string& other = some(corpus_);
    text_ = text_.substr(0, place()) + other.substr(random_.below(other.size() + 1));
  }

  Random& random_;
  std::string& text_;
  const Corpus& corpus_;
  const Corpus& dictionary_;
};

}  // namespace

std::string Mutator::make(std::uint64_t seed, std::uint64_t number) const {
  Random random(seed * 0x2545f4914f6cdd1d + number);
  std::string text = corpus_[random.below(corpus_.size())];
  for (std::size_t changes = 1 + random.below(8); changes > 0; --changes) {
    Change(random, text, corpus_, dictionary_).apply();
    if (text.size() > kMaxMutatedBytes) text.resize(kMaxMutatedBytes);
  }
  return text;
}

std::uint64_t Mutator::num_systematic() const {
  std::uint64_t num = 2 * dictionary_.size();
  for (const std::string& member : corpus_) num += std::min(member.size(), kMaxCuts);
  return num;
}

std::string Mutator::systematic(std::uint64_t number) const {
  for (const std::string& member : corpus_) {
    const std::size_t cuts = std::min(member.size(), kMaxCuts);
    if (number < cuts) return member.substr(0, number * member.size() / cuts);
    number -= cuts;
  }
  const std::string& word = dictionary_[number / 2];
  const std::string& around = number % 2 == 0 ? std::string() : corpus_.front();
  std::string text = around.substr(0, around.size() / 2);
  while (!word.empty() && text.size() + word.size() <= kMaxNestedBytes) text += word;
  return text + around.substr(around.size() / 2);
}

std::vector<std::string> read_dictionary(const std::filesystem::path& file) {
  std::vector<std::string> words;
  std::ifstream lines(file);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const auto refuse = [&] { throw std::runtime_error(cat(file.string(), ":", number, ": is no word in quotes")); };
    if (line.size() < 2 || line.front() != '"' || line.back() != '"') refuse();
    std::string word;
    for (std::size_t i = 1; i + 1 < line.size(); ++i) {
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[++i] == 'x') {
        unsigned value = 0;
        if (std::from_chars(line.data() + i + 1, line.data() + i + 3, value, 16).ptr != line.data() + i + 3) refuse();
        word += static_cast<char>(value);
        i += 2;
      } else {
        word += line[i];
      }
    }
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace rp::fuzz
