// benchmarks/attached_store.h
// A second view of a host store in the same process, as a worker has it: parameters are read-only.
#pragma once

#include <fcntl.h>

#include <memory>
#include <utility>
#include <vector>

#include "hoststore/store.h"

namespace rp {

inline std::unique_ptr<Store> attached_view(const Store& store) {
  std::vector<UniqueFd> descriptors;
  for (const int fd : store.descriptors()) descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return Store::attach(std::move(descriptors));
}

}  // namespace rp
