// Runs the targets on their corpora and on inputs derived from them, under the sanitizers:
// docs/design/fuzzing.md.
//   fuzz_readers TARGET [--inputs N] [--seconds S] [--seed N]
//     the corpus, the systematic inputs, then N inputs, or as many as S seconds allow
//   fuzz_readers TARGET FILE...
//     these inputs only
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "common/text.h"
#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/reading.h"

#define RP_FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t*, std::size_t);
#include "fuzz_targets.inc"
#undef RP_FUZZ_TARGET

namespace rp::fuzz {
namespace {

namespace fs = std::filesystem;
using Target = int (*)(const std::uint8_t*, std::size_t);

const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> kTargets = {
#define RP_FUZZ_TARGET(name) {#name, fuzz_##name},
#include "fuzz_targets.inc"
#undef RP_FUZZ_TARGET
  };
  return kTargets;
}

constexpr std::uintmax_t kMaxCorpusFileBytes = 4096;

struct Arguments {
  std::string target;
  std::vector<fs::path> files;
  std::uint64_t inputs = 0;
  double seconds = 0;
  std::uint64_t seed = 1;
};

Arguments arguments_of(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] {
      if (i + 1 == argc) throw std::runtime_error(word + " needs a number");
      return std::stod(argv[++i]);
    };
    if (word == "--inputs") arguments.inputs = static_cast<std::uint64_t>(number());
    else if (word == "--seconds") arguments.seconds = number();
    else if (word == "--seed") arguments.seed = static_cast<std::uint64_t>(number());
    else if (arguments.target.empty()) arguments.target = word;
    else arguments.files.emplace_back(word);
  }
  if (targets().contains(arguments.target)) return arguments;
  std::vector<std::string> names;
  for (const auto& [name, target] : targets()) names.push_back(name);
  throw std::runtime_error(
      cat("usage: fuzz_readers TARGET [--inputs N] [--seconds S] [--seed N], or fuzz_readers TARGET FILE...; targets: ",
          list_of(names)));
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(file.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

class Session {
 public:
  explicit Session(Target target) : target_(target) {}

  // Returns true if the reader accepted the input.
  bool run(const std::string& input) {
    const std::uint64_t before = num_accepted;
    begin_input(input);
    call(input);
    const InputCost cost = end_input();
    peak_ms_ = std::max(peak_ms_, cost.ms);
    peak_bytes_ = std::max(peak_bytes_, cost.bytes);
    ++num_inputs_;
    const bool is_taken = num_accepted > before;
    num_taken_ += is_taken ? 1 : 0;
    return is_taken;
  }

  // A file's name states the expected result: a reader that refuses everything would have no other
  // bugs to find.
  void run_corpus_file(const fs::path& file, const std::string& input) {
    const std::string name = file.filename().string();
    if (input.size() > kMaxCorpusFileBytes) throw std::runtime_error(file.string() + " has more than 4096 bytes");
    const bool is_taken = run(input);
    if (name.starts_with("good-") && !is_taken) fail_input("is refused, but its name in the corpus begins with good-");
    if (name.starts_with("bad-") && is_taken) fail_input("is taken, but its name in the corpus begins with bad-");
    if (!name.starts_with("good-") && !name.starts_with("bad-"))
      throw std::runtime_error(file.string() + ": its name begins with neither good- nor bad-");
  }

  [[nodiscard]] std::string text() const {
    return cat(num_inputs_, " inputs, ", num_taken_, " of them taken; at most ",
               static_cast<std::int64_t>(peak_ms_ + 0.5), " ms and ",
               bytes_text(static_cast<std::uint64_t>(peak_bytes_)), " for one");
  }

 private:
  // An exception of a target ends the process, as under libFuzzer.
  void call(const std::string& input) const noexcept {
    (void)target_(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }

  Target target_;
  std::uint64_t num_inputs_ = 0, num_taken_ = 0;
  double peak_ms_ = 0;
  std::int64_t peak_bytes_ = 0;
};

std::vector<fs::path> corpus_of(const std::string& target) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(RP_FUZZ_FOLDER) / "corpus" / target))
    files.push_back(entry.path());
  std::ranges::sort(files);
  if (files.empty()) throw std::runtime_error("the target has no corpus");
  return files;
}

std::vector<std::string> dictionary_of(const std::string& target) {
  const fs::path folder = fs::path(RP_FUZZ_FOLDER) / "dictionaries";
  std::vector<std::string> words = read_dictionary(folder / "common.dict");
  const std::vector<std::string> own = read_dictionary(folder / (target + ".dict"));
  words.insert(words.end(), own.begin(), own.end());
  return words;
}

void run_session(const Arguments& arguments, Session& session) {
  std::vector<std::string> corpus;
  for (const fs::path& file : corpus_of(arguments.target)) {
    corpus.push_back(content_of(file));
    session.run_corpus_file(file, corpus.back());
  }
  const Mutator mutator(corpus, dictionary_of(arguments.target));
  for (std::uint64_t i = 0; i < mutator.num_systematic(); ++i) session.run(mutator.systematic(i));
  const std::int64_t end_ns = now_ns() + static_cast<std::int64_t>(arguments.seconds * 1e9);
  for (std::uint64_t i = 0; i < arguments.inputs || now_ns() < end_ns; ++i)
    session.run(mutator.make(arguments.seed, i));
}

int main(int argc, char** argv) {
  const Arguments arguments = arguments_of(argc, argv);
  watch_inputs(argv[0], arguments.target);
  Session session(targets().at(arguments.target));
  const std::int64_t begin_ns = now_ns();
  for (const fs::path& file : arguments.files) {
    const bool is_taken = session.run(content_of(file));
    std::printf("%s: %s\n", file.c_str(), is_taken ? "taken" : "refused");
  }
  if (arguments.files.empty()) run_session(arguments, session);
  std::printf("fuzz %s: %s; %.1f s\n", arguments.target.c_str(), session.text().c_str(),
              static_cast<double>(now_ns() - begin_ns) * 1e-9);
  return 0;
}

}  // namespace
}  // namespace rp::fuzz

int main(int argc, char** argv) {
  try {
    return rp::fuzz::main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    return 2;
  }
}
