// The journal of --trace that the processes of a run leave. The input changes its header, then a
// piece with records.
#include "hoststore/records/trace_journal.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "launcher/trace/trace_json.h"
#include "tests/fuzz/reading.h"

namespace {

constexpr std::size_t kPieceBytes = sizeof(rp::TracePieceHeader) + 20 * sizeof(rp::TraceRecord);

// Returns a journal with one record of each kind.
std::vector<std::byte> bytes_of_journal() {
  const rp::TempDirectory directory;
  rp::TraceJournal journal =
      rp::TraceJournal::create(directory.path(), {.program = "train", .device = "cpu", .num_workers = 1});
  rp::TraceTrack track(&journal, 1, 1);
  for (std::uint32_t kind = 1; kind <= static_cast<std::uint32_t>(rp::TraceKind::kRecompute); ++kind) {
    track.add({.kind = static_cast<rp::TraceKind>(kind),
               .begin_ns = 1000 * kind,
               .end_ns = 1000 * kind + 500,
               .slot = 1,
               .numbers = {1, 1, 1, 1}});
  }
  std::vector<std::byte> bytes(rp::kTraceHeaderBytes + kPieceBytes);
  rp::fuzz::require(pread(journal.fd(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::byte> kBase = bytes_of_journal();
  static const rp::UniqueFd kFile(memfd_create("journal", MFD_CLOEXEC));
  const std::string_view input = rp::fuzz::text_of(data, size);
  const std::size_t of_header = std::min(size, sizeof(rp::TraceHeader));
  const auto piece = kBase.begin() + static_cast<std::ptrdiff_t>(rp::kTraceHeaderBytes);
  std::vector<std::byte> bytes = rp::fuzz::changed({kBase.begin(), piece}, input.substr(0, of_header));
  const std::vector<std::byte> changed_piece = rp::fuzz::changed({piece, kBase.end()}, input.substr(of_header));
  bytes.insert(bytes.end(), changed_piece.begin(), changed_piece.end());
  rp::fuzz::require(pwrite(kFile.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return rp::fuzz::expect_answer([&] {
    const rp::TraceJournal journal = rp::TraceJournal::attach(rp::UniqueFd(fcntl(kFile.get(), F_DUPFD_CLOEXEC, 3)));
    rp::write_trace_json(journal, [](std::string_view) {});
  });
}
