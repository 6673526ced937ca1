// The fault board that a dying process leaves. The input changes its header, then the entry that is
// read for a dump.
#include "hoststore/records/fault_board.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "launcher/process/run_dump.h"
#include "tests/fuzz/reading.h"

namespace {

std::vector<std::byte> bytes_of(const rp::FaultBoard& board) {
  std::vector<std::byte> bytes(2 * rp::kFaultEntryBytes);
  rp::fuzz::require(pread(board.fd(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::byte> kBase = bytes_of(rp::FaultBoard::create(1));
  static const rp::UniqueFd kFile(memfd_create("board", MFD_CLOEXEC));
  const std::string_view input = rp::fuzz::text_of(data, size);
  const std::size_t of_header = std::min(size, sizeof(rp::FaultBoardHeader));
  const auto entry = kBase.begin() + static_cast<std::ptrdiff_t>(rp::kFaultEntryBytes);
  std::vector<std::byte> bytes = rp::fuzz::changed({kBase.begin(), entry}, input.substr(0, of_header));
  const std::vector<std::byte> changed_entry = rp::fuzz::changed({entry, kBase.end()}, input.substr(of_header));
  bytes.insert(bytes.end(), changed_entry.begin(), changed_entry.end());
  rp::fuzz::require(pwrite(kFile.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return rp::fuzz::expect_answer([&] {
    const rp::FaultBoard board = rp::FaultBoard::attach(rp::UniqueFd(fcntl(kFile.get(), F_DUPFD_CLOEXEC, 3)));
    (void)board.entry(0).fault();
    for (const int index : {0, 1}) {
      const rp::ProcessSnapshot snapshot = rp::snapshot_of("worker 0", index, 0, std::nullopt, board.entry(0));
      (void)rp::dump_text("rp-launch", "interrupted", {snapshot, snapshot}, 1'000'000'000);
    }
  });
}
