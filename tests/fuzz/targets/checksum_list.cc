// XXH128SUMS and SHA256SUMS. A list that is accepted must be the same byte for byte when it is
// written again.
#include "common/checked_files/checksum.h"

#include "tests/fuzz/reading.h"

namespace {

void read(rp::fuzz::InputFolder& folder, rp::ChecksumKind kind, std::string_view text) {
  (void)folder.put(text);
  (void)rp::fuzz::expect_answer(
      [&] { rp::fuzz::require(rp::ChecksumList::read(folder.directory().path(), kind).text() == text); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using rp::ChecksumKind;
  static rp::fuzz::InputFolder xxh128(rp::ChecksumList::file_name(ChecksumKind::kXxh128)),
      sha256(rp::ChecksumList::file_name(ChecksumKind::kSha256));
  read(xxh128, ChecksumKind::kXxh128, rp::fuzz::text_of(data, size));
  read(sha256, ChecksumKind::kSha256, rp::fuzz::text_of(data, size));
  return 0;
}
