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

}  // namespace rp
