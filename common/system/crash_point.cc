#include "common/system/crash_point.h"

#ifdef RP_CRASH_POINTS

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace rp {

namespace {

struct CrashPoint {
  std::string name;
  int signal = SIGKILL;
  int left = 1;  // how often the process must still come there
};

// Returns the number in front of the next colon or comma, and removes both from `text`.
int take_number(std::string_view& text, int otherwise) {
  if (!text.starts_with(':')) return otherwise;
  int number = otherwise;
  const auto end = std::from_chars(text.data() + 1, text.data() + text.size(), number).ptr;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::vector<CrashPoint> wanted_points() {
  std::vector<CrashPoint> points;
  std::string_view text = std::getenv("RP_CRASH_AT");
  while (!text.empty()) {
    CrashPoint point;
    const std::size_t end = text.find_first_of(":,");
    point.name = text.substr(0, end);
    text.remove_prefix(std::min(end, text.size()));
    point.signal = take_number(text, SIGKILL);
    point.left = take_number(text, 1);
    if (!text.empty()) text.remove_prefix(1);
    points.push_back(point);
  }
  return points;
}

bool is_first(const std::string& name) {
  const char* path = std::getenv("RP_CRASH_ONCE");
  if (path == nullptr) return true;
  return open((path + ("." + name)).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) >= 0;
}

}  // namespace

void reach_crash_point(const char* name) {
  static std::vector<CrashPoint> points = wanted_points();
  for (CrashPoint& point : points) {
    if (point.name != name || std::atomic_ref(point.left).fetch_sub(1) != 1 || !is_first(point.name)) continue;
    raise(point.signal);
    _exit(128 + point.signal);
  }
}

}  // namespace rp

#endif
