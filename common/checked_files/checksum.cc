#include "common/checked_files/checksum.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>

#include "common/bad_input.h"
#include "common/check.h"
#include "common/files/input_file.h"
#include "common/text.h"

namespace rp {
namespace {

constexpr std::uint64_t kMaxListBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

struct Free {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  void operator()(EVP_MD_CTX* state) const { EVP_MD_CTX_free(state); }
};

std::size_t num_digits(ChecksumKind kind) { return kind == ChecksumKind::kSha256 ? 64 : 32; }

std::string hex_text(const unsigned char* bytes, std::size_t count) {
  static constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\n\r\0", 5)) == std::string_view::npos;
}

// Accepts a line only if it is exactly what text() writes, so that every changed byte is detected.
bool is_entry(std::string_view line, std::size_t digits) {
  return line.size() > digits + 2 && line.substr(digits, 2) == "  " && is_plain_name(line.substr(digits + 2)) &&
         line.substr(0, digits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string checksum_of(const InputFile& file, ChecksumKind kind) {
  Checksum checksum(kind);
  std::vector<std::byte> piece(std::min(kPieceBytes, file.size()));
  for (std::uint64_t offset = 0; offset < file.size(); offset += piece.size()) {
    const std::uint64_t bytes = std::min<std::uint64_t>(piece.size(), file.size() - offset);
    file.read_at(offset, piece.data(), bytes);
    checksum.add(piece.data(), bytes);
  }
  return checksum.hex();
}

}  // namespace

class Checksum::State {
 public:
  explicit State(ChecksumKind kind) {
    if (kind == ChecksumKind::kSha256) {
      sha256_.reset(EVP_MD_CTX_new());
      // Fails only if the library was configured without SHA-256.
      if (sha256_ == nullptr || EVP_DigestInit_ex(sha256_.get(), EVP_sha256(), nullptr) != 1) throw std::bad_alloc();
    } else {
      xxh128_.reset(XXH3_createState());
      if (xxh128_ == nullptr) throw std::bad_alloc();
      XXH3_128bits_reset(xxh128_.get());
    }
  }

  void add(const void* data, std::uint64_t bytes) {
    if (sha256_ != nullptr) {
      RP_ASSERT(EVP_DigestUpdate(sha256_.get(), data, bytes) == 1);
    } else {
      XXH3_128bits_update(xxh128_.get(), data, bytes);
    }
  }

  std::string hex() {
    if (sha256_ != nullptr) {
      std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
      unsigned size = 0;
      RP_ASSERT(EVP_DigestFinal_ex(sha256_.get(), digest.data(), &size) == 1);
      return hex_text(digest.data(), size);
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(xxh128_.get()));
    return hex_text(digest.digest, sizeof digest.digest);
  }

 private:
  // One of the two is set, depending on the kind.
  std::unique_ptr<EVP_MD_CTX, Free> sha256_;
  std::unique_ptr<XXH3_state_t, Free> xxh128_;
};

Checksum::Checksum(ChecksumKind kind) : state_(std::make_unique<State>(kind)) {}
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(const void* data, std::uint64_t bytes) { state_->add(data, bytes); }

std::string Checksum::hex() { return state_->hex(); }

const char* ChecksumList::file_name(ChecksumKind kind) {
  return kind == ChecksumKind::kSha256 ? "SHA256SUMS" : "XXH128SUMS";
}

ChecksumList ChecksumList::read(const std::filesystem::path& directory, ChecksumKind kind) {
  const std::filesystem::path path = directory / file_name(kind);
  const std::string text = InputFile::open(path).read_all(kMaxListBytes);
  ChecksumList list(kind);
  std::size_t begin = 0;
  for (std::int64_t line = 1; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    if (end == std::string::npos || !is_entry(entry, num_digits(kind))) {
      throw bad_input(path, "line ", line, " is not a checksum, two spaces and a file's name: the list is damaged");
    }
    const std::string name(entry.substr(num_digits(kind) + 2));
    if (!list.entries_.empty() && name <= list.entries_.rbegin()->first) {
      throw bad_input(path, "line ", line, ", of ", quoted_name(name),
                      ", is out of order (the names must be sorted): the list is damaged");
    }
    list.entries_.emplace(name, entry.substr(0, num_digits(kind)));
    begin = end + 1;
  }
  return list;
}

void ChecksumList::add(const std::string& name, std::string hex) {
  RP_ASSERT(is_plain_name(name));
  RP_ASSERT(entries_.emplace(name, std::move(hex)).second);
}

std::string ChecksumList::text() const {
  std::string text;
  for (const auto& [name, hex] : entries_) text += cat(hex, "  ", name, "\n");
  return text;
}

void ChecksumList::expect(const std::filesystem::path& file, const std::string& hex) const {
  const auto found = entries_.find(file.filename().string());
  if (found == entries_.end())
    throw bad_input(file, "is not listed in ", file_name(kind_), " next to it: one of the two is damaged");
  if (found->second != hex)
    throw bad_input(file, "does not have its checksum in ", file_name(kind_), " next to it: it was changed or damaged");
}

void ChecksumList::verify_if_listed(const std::filesystem::path& directory, ChecksumKind kind,
                                    const std::vector<std::string>& files) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(directory / file_name(kind), ignored))) return;
  try {
    const ChecksumList list = read(directory, kind);
    for (const std::string& file : files) {
      if (!list.entries_.contains(file))
        throw bad_input(directory / file, "is not listed in ", file_name(kind), " next to it");
    }
    list.verify(directory);
  } catch (const Error& error) {
    throw Error(error.code(), cat(error.what(), "; if you changed it yourself, remove ", file_name(kind)));
  }
}

void ChecksumList::verify(const std::filesystem::path& directory) const {
  for (const auto& [name, hex] : entries_) {
    const std::filesystem::path path = directory / name;
    expect(path, checksum_of(InputFile::open(path), kind_));
  }
}

}  // namespace rp
