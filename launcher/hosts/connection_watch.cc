#include "launcher/hosts/connection_watch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "common/text.h"

namespace rp {

namespace {

std::set<std::uint64_t> sockets_of(pid_t pid) {
  std::set<std::uint64_t> numbers;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), failed)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) numbers.insert(std::strtoull(target.c_str() + 8, nullptr, 10));
  }
  return numbers;
}

}  // namespace

std::vector<TcpConnection> tcp_connections(pid_t pid) {
  const std::set<std::uint64_t> own = sockets_of(pid);
  std::vector<TcpConnection> connections;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(cat("/proc/", pid, "/net/", table));
    std::string line;
    std::getline(file, line);  // the names of the columns
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string place;
      std::string local;
      std::string remote;
      std::string state;
      std::string queues;  // bytes sent and received, as 0000001F:00000000
      std::string timer;
      std::string retries;
      std::string user;
      std::string timeout;
      TcpConnection connection;
      words >> place >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> connection.number;
      if (!words || !own.contains(connection.number)) continue;
      connection.sent_bytes = std::strtoull(queues.c_str(), nullptr, 16);
      connection.num_retries = static_cast<int>(std::strtoul(retries.c_str(), nullptr, 16));
      constexpr const char* kListens = "0A";
      if (state != kListens) connections.push_back(connection);
    }
  }
  return connections;
}

std::int64_t ConnectionWatch::unanswered_ns(std::int64_t now_ns) {
  std::map<std::uint64_t, std::int64_t> since_ns;
  std::int64_t longest_ns = 0;
  for (const TcpConnection& connection : tcp_connections(pid_)) {
    if (connection.num_retries == 0) continue;
    const auto before = since_ns_.find(connection.number);
    const std::int64_t since = before == since_ns_.end() ? now_ns : before->second;
    since_ns[connection.number] = since;
    longest_ns = std::max(longest_ns, now_ns - since);
  }
  since_ns_ = std::move(since_ns);
  return longest_ns;
}

}  // namespace rp
