// The host store as a worker attaches to it. The input changes the header of the control segment,
// then its catalogue.
#include "hoststore/store.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "tests/fuzz/reading.h"
#include "tests/hoststore/small_catalogue.h"

namespace {

std::unique_ptr<rp::Store> small_store() {
  rp::StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = 1;
  settings.arena_limit_bytes = std::uint64_t{16} << 20;
  return rp::Store::create(settings, rp::test::small_catalogue());
}

// Returns header and catalogue, which are in different parts of the segment.
std::vector<std::byte> bytes_of(const rp::Store& store) {
  const rp::ControlHeader& header = store.header();
  const auto* begin = reinterpret_cast<const std::byte*>(&header);
  std::vector<std::byte> bytes(begin, begin + sizeof(header));
  bytes.insert(bytes.end(), begin + header.catalogue_offset, begin + header.bytes);
  return bytes;
}

volatile std::byte sink;

// Reads the first and the last byte of a weight group, which must exist.
void touch(const std::byte* data, std::uint64_t bytes) {
  if (bytes == 0) return;
  sink = data[0];
  sink = data[bytes - 1];
}

void use(rp::Store& store) {
  const rp::Catalogue& catalogue = store.catalogue();
  for (const rp::GroupId group : catalogue.weight_groups().indices()) {
    const rp::WeightGroupRecord& record = catalogue.weight_groups()[group];
    for (std::uint32_t copy = 0; copy < record.num_copies; ++copy) {
      touch(std::as_const(store).parameters(record.parameter_offset[copy]), record.bytes());
    }
    sink = static_cast<std::byte>(store.published(group).observe().value());
  }
  for (const rp::UseId use : catalogue.uses().indices()) {
    if (catalogue.weight_groups()[catalogue.uses()[use].group].is_trained == 0) continue;
    touch(store.gradient(use).data(), store.gradient(use).size());
    sink = static_cast<std::byte>(store.gradient_released(use).observe());
  }
  for (int worker = 0; worker < store.num_workers(); ++worker) {
    sink = static_cast<std::byte>(store.worker_words(worker).events.observe().value());
    touch(reinterpret_cast<const std::byte*>(&store.event_ring(worker)), sizeof(rp::EventRing));
  }
  (void)store.regions();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<rp::Store> kStore = small_store();
  static const std::vector<std::byte> kBase = bytes_of(*kStore);
  static const std::uint64_t kCatalogueOffset = kStore->header().catalogue_offset;
  static const rp::UniqueFd kControl(memfd_create("control", MFD_CLOEXEC));
  rp::fuzz::require(ftruncate(kControl.get(), static_cast<off_t>(kStore->header().bytes)) == 0);
  std::vector<std::byte> bytes = rp::fuzz::changed(kBase, rp::fuzz::text_of(data, size));
  std::vector<std::byte> catalogue(bytes.begin() + sizeof(rp::ControlHeader), bytes.end());
  rp::test::set_checksum(catalogue);
  rp::fuzz::require(pwrite(kControl.get(), bytes.data(), sizeof(rp::ControlHeader), 0) == sizeof(rp::ControlHeader));
  rp::fuzz::require(pwrite(kControl.get(), catalogue.data(), catalogue.size(), static_cast<off_t>(kCatalogueOffset)) ==
                    static_cast<ssize_t>(catalogue.size()));
  std::vector<rp::UniqueFd> descriptors;
  for (const int fd : kStore->descriptors()) descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  descriptors[0] = rp::UniqueFd(fcntl(kControl.get(), F_DUPFD_CLOEXEC, 3));
  return rp::fuzz::expect_answer([&] { use(*rp::Store::attach(std::move(descriptors))); });
}
