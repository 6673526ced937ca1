// A token file, with the checksum that its content requires, so that the input passes this check.
#include "train/data/token_file.h"

#include <cstring>

#include "common/files/crc32.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHeaderBytes = 80, kChecksumPlace = 60;
  static rp::fuzz::InputFolder folder("data.tokens");
  std::string bytes(rp::fuzz::text_of(data, size));
  if (bytes.size() >= kHeaderBytes) {
    const std::uint32_t checksum = rp::crc32(0, bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
    std::memcpy(bytes.data() + kChecksumPlace, &checksum, sizeof checksum);
  }
  const auto& path = folder.put(bytes);
  return rp::fuzz::expect_answer([&] {
    const rp::TokenFile file = rp::TokenFile::open(path, 1000);
    std::uint64_t tokens = 0;
    for (std::uint64_t i = 0; i < file.num_documents(); ++i)
      tokens += file.read(file.document_begin(i), file.document_end(i)).tokens.size();
    rp::fuzz::require(tokens == file.num_tokens());
  });
}
