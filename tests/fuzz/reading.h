// tests/fuzz/reading.h
// Functions that the targets share: they turn an input into a file and check the result of reading
// it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/system/fd.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp::fuzz {

// The number of inputs that their reader accepted. The driver compares it with the names of corpus
// files.
inline std::uint64_t num_accepted = 0;

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Called by checks of a target; an abort is a failure for both drivers.
inline void require(bool is_true) {
  if (!is_true) std::abort();
}

// Calls `read`, which accepts the input or throws rp::Error with a message. Any other exception
// ends the process, which is a failure.
template <typename Read>
int expect_answer(const Read& read) {
  try {
    read();
    ++num_accepted;
  } catch (const Error& error) {
    require(error.what()[0] != '\0' && error.code() != ExitCode::kOk);
  }
  return 0;
}

// A directory with one file whose content is replaced for each input.
class InputFolder {
 public:
  explicit InputFolder(const std::string& name)
      : path_(directory_.file(name)), fd_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}

  // Writes `content` to the file and returns its path.
  const std::filesystem::path& put(std::string_view content) {
    require(ftruncate(fd_.get(), 0) == 0);
    require(pwrite(fd_.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    return path_;
  }

  [[nodiscard]] const TempDirectory& directory() const { return directory_; }

 private:
  TempDirectory directory_;
  std::filesystem::path path_;
  UniqueFd fd_;
};

// Returns the words of a command line. An input has one word per line, or words between zeros as in
// /proc/PID/cmdline.
inline std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find_first_of(std::string_view("\n\0", 2), begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Returns `base` with the input's bytes xor-ed over it. So an empty input is the base itself, even
// if its format changes.
inline std::vector<std::byte> changed(std::vector<std::byte> base, std::string_view input) {
  for (std::size_t i = 0; i < std::min(base.size(), input.size()); ++i) base[i] ^= static_cast<std::byte>(input[i]);
  return base;
}

}  // namespace rp::fuzz
