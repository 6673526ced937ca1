#include "common/system/kernel_file.h"

#include <fstream>
#include <sstream>

namespace rp {

// An iterator over the stream's buffer would throw when reading fails; this operator ends instead.
std::string kernel_file_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> command_line_of(pid_t process) {
  std::istringstream text(kernel_file_text("/proc/" + std::to_string(process) + "/cmdline"));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace rp
