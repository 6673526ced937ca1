#include "common/system/processor.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

namespace rp {

std::string instructions_of(const std::string& cpuinfo) {
  constexpr std::array kNames = {"avx2",     "fma",      "f16c",     "avx_vnni",    "avx512f",     "avx512bw",
                                 "avx512dq", "avx512vl", "amx_bf16", "avx512_vnni", "avx512_bf16", "avx512_fp16",
                                 "asimd",    "sve",      "sve2",     "bf16",        "i8mm"};
  std::set<std::string> found;
  std::istringstream lines(cpuinfo);
  for (std::string line; found.empty() && std::getline(lines, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(std::min(line.size(), line.find(':') + 1)));
    for (std::string word; words >> word;) found.insert(word);
  }
  std::string text;
  for (const char* name : kNames) {
    if (!found.contains(name)) continue;
    if (!text.empty()) text += ' ';
    text += name;
  }
  return text.empty() ? "unknown" : text;
}

}  // namespace rp
