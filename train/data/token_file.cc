#include "train/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

#include "common/bad_input.h"
#include "common/check.h"
#include "common/checked_files/checksum.h"
#include "common/files/crc32.h"

namespace rp {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

constexpr std::string_view kMagic = "RPTOKENS";
constexpr std::uint32_t kNoEos = UINT32_MAX;
constexpr std::uint64_t kMaxVocabulary = std::uint64_t{1} << 24;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t vocabulary;
  std::uint64_t num_documents;
  std::uint64_t num_tokens;
  std::uint64_t num_trained;
  std::uint32_t max_token;
  std::uint32_t eos_token;
  std::uint32_t kind;
  std::uint32_t checksum;
  std::uint64_t longest_document;
  std::uint64_t tokenizer;
};
static_assert(sizeof(Header) == 80 && offsetof(Header, max_token) == 48 && offsetof(Header, longest_document) == 64);

Header read_header(const InputFile& file) {
  Header header{};
  if (file.size() < sizeof header) {
    throw bad_input(file.path(), "has ", file.size(),
                    " bytes, too few for a token file; make it with tools/prepare_data.py");
  }
  file.read_at(0, &header, sizeof header);
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic) {
    throw bad_input(file.path(), "is not a token file; make one with tools/prepare_data.py");
  }
  if (header.version != 1 || header.header_bytes != sizeof header) {
    throw bad_input(file.path(), "is a token file of version ", header.version, " with a header of ",
                    header.header_bytes, " bytes; version 1 with ", sizeof header,
                    " is read. Make it again with tools/prepare_data.py");
  }
  return header;
}

// Checks that the header is consistent with itself and with the size of the file. After this, its
// sizes can be relied on.
void check_header(const InputFile& file, const Header& header) {
  const auto refuse = [&](const auto&... pieces) { throw bad_input(file.path(), pieces...); };
  if (header.num_documents == 0 || header.num_tokens == 0) refuse("has no tokens");
  if (header.num_trained == 0) refuse("has no trained tokens");
  const std::uint64_t payload = file.size() - sizeof header;
  // Divides instead of multiplying, because the numbers may have any value and a product could
  // overflow.
  if (header.num_documents >= payload / 8 || header.num_tokens > payload / 5 ||
      (header.num_documents + 1) * 8 + header.num_tokens * 5 != payload) {
    refuse("says that it has ", header.num_documents, " documents of ", header.num_tokens,
           " tokens, which does not fit its ", file.size(), " bytes (is it truncated?)");
  }
  if (header.num_trained > header.num_tokens) {
    refuse("says that ", header.num_trained, " of its ", header.num_tokens, " tokens are trained");
  }
  if (header.vocabulary == 0 || header.vocabulary > kMaxVocabulary) {
    refuse("says that its vocabulary is ", header.vocabulary);
  }
  if (header.max_token >= header.vocabulary) {
    refuse("says that its largest token is ", header.max_token, " of a vocabulary of ", header.vocabulary);
  }
  if (header.eos_token != kNoEos && header.eos_token >= header.vocabulary) {
    refuse("says that its end-of-text token is ", header.eos_token, " of a vocabulary of ", header.vocabulary);
  }
  if (header.kind > 1) refuse("says that its kind is ", header.kind, "; 0 and 1 are known");
}

void check_document_ends(const InputFile& file, const Header& header, const std::vector<std::uint64_t>& ends) {
  if (ends.front() != 0 || ends.back() != header.num_tokens) {
    throw bad_input(file.path(), "its documents go from token ", ends.front(), " to ", ends.back(), " instead of 0 to ",
                    header.num_tokens);
  }
  std::uint64_t longest = 0;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] <= ends[i - 1]) {
      throw bad_input(file.path(), "document ", i - 1, " goes from token ", ends[i - 1], " to ", ends[i]);
    }
    longest = std::max(longest, ends[i] - ends[i - 1]);
  }
  if (longest != header.longest_document) {
    throw bad_input(file.path(), "says that its longest document has ", header.longest_document,
                    " tokens, but one has ", longest);
  }
}

}  // namespace

std::uint64_t tokenizer_identity(const std::filesystem::path& model) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const std::filesystem::path path = model / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return 0;
  const std::string text = InputFile::open(path).read_all(kMaxBytes);
  Checksum checksum(ChecksumKind::kSha256);
  checksum.add(text.data(), text.size());
  const std::string hex = checksum.hex();
  std::uint64_t identity = 0;
  for (std::size_t byte = sizeof identity; byte-- > 0;)
    identity = identity << 8 | std::stoull(hex.substr(2 * byte, 2), nullptr, 16);
  return identity;
}

TokenFile TokenFile::open(const std::filesystem::path& path, std::int64_t vocabulary) {
  TokenFile result(InputFile::open(path));
  const InputFile& file = result.file_;
  const Header header = read_header(file);
  check_header(file, header);
  if (header.max_token >= static_cast<std::uint64_t>(vocabulary)) {
    throw bad_input(path, "has token ids up to ", header.max_token, " (tokenizer of ", header.vocabulary,
                    " tokens), but the model's vocabulary is ", vocabulary,
                    "; prepare the data with the tokenizer of this model");
  }
  result.document_ends_.resize(header.num_documents + 1);
  const std::uint64_t ends_bytes = result.document_ends_.size() * sizeof(std::uint64_t);
  file.read_at(sizeof header, result.document_ends_.data(), ends_bytes);
  check_document_ends(file, header, result.document_ends_);
  result.kind_ = static_cast<Kind>(header.kind);
  result.num_trained_ = header.num_trained;
  result.vocabulary_ = static_cast<std::uint64_t>(vocabulary);
  if (header.eos_token != kNoEos) result.eos_token_ = header.eos_token;
  result.checksum_ = header.checksum;
  result.tokenizer_ = header.tokenizer;
  result.tokens_offset_ = sizeof header + ends_bytes;
  result.mask_offset_ = result.tokens_offset_ + header.num_tokens * sizeof(std::uint32_t);
  result.check_content(header.max_token);
  return result;
}

void TokenFile::check_content(std::uint64_t max_token) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;
  std::uint32_t checksum = crc32(0, document_ends_.data(), document_ends_.size() * sizeof(std::uint64_t));
  std::vector<std::uint32_t> tokens;
  std::uint32_t found_max = 0;
  for (std::uint64_t begin = 0; begin < num_tokens(); begin += kPiece) {
    tokens.resize(std::min(kPiece, num_tokens() - begin));
    file_.read_at(tokens_offset_ + begin * sizeof(std::uint32_t), tokens.data(), tokens.size() * sizeof(std::uint32_t));
    checksum = crc32(checksum, tokens.data(), tokens.size() * sizeof(std::uint32_t));
    found_max = std::max(found_max, *std::max_element(tokens.begin(), tokens.end()));
  }
  if (found_max != max_token) {
    throw bad_input(path(), "says that its largest token is ", max_token, ", but has ", found_max);
  }
  std::vector<std::uint8_t> mask;
  std::uint64_t found_trained = 0;
  for (std::uint64_t begin = 0; begin < num_tokens(); begin += kPiece) {
    mask.resize(std::min(kPiece, num_tokens() - begin));
    file_.read_at(mask_offset_ + begin, mask.data(), mask.size());
    checksum = crc32(checksum, mask.data(), mask.size());
    if (*std::max_element(mask.begin(), mask.end()) > 1) {
      throw bad_input(path(), "its mask holds something else than 0 and 1");
    }
    found_trained += static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), std::uint8_t{1}));
  }
  if (found_trained != num_trained_) {
    throw bad_input(path(), "says that ", num_trained_, " tokens are trained, but marks ", found_trained);
  }
  if (checksum != checksum_) {
    throw bad_input(path(), "is damaged: its checksum is not that of its content; make it again");
  }
}

TokenSpan TokenFile::read(std::uint64_t begin, std::uint64_t end) const {
  RP_ASSERT(begin <= end && end <= num_tokens());
  TokenSpan span{std::vector<std::uint32_t>(end - begin), std::vector<std::uint8_t>(end - begin)};
  file_.read_at(tokens_offset_ + begin * sizeof(std::uint32_t), span.tokens.data(),
                (end - begin) * sizeof(std::uint32_t));
  file_.read_at(mask_offset_ + begin, span.is_trained.data(), end - begin);
  for (const std::uint32_t token : span.tokens) {
    // The ids were checked when the file was opened, but an id beyond the vocabulary would cause a
    // read outside of the embedding.
    if (token >= vocabulary_) throw bad_input(path(), "was changed while it was used (token ", token, ")");
  }
  return span;
}

}  // namespace rp
