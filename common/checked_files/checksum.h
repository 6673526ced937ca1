// common/checked_files/checksum.h
// Computes and verifies the checksums of a directory's files, in the format that sha256sum and
// xxhsum write and check.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rp {

enum class ChecksumKind : std::uint8_t {
  kSha256,  // in SHA256SUMS, for `sha256sum --check`
  kXxh128,  // in XXH128SUMS, for `xxhsum --check`: as fast as memory; for files that this program reads again
};

// Computes the checksum of bytes that arrive in pieces. Movable.
class Checksum {
 public:
  explicit Checksum(ChecksumKind kind);
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void add(const void* data, std::uint64_t bytes);
  // Returns the checksum of all bytes so far, in lower-case hexadecimal digits. REQUIRES: called
  // once, at the end.
  [[nodiscard]] std::string hex();

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Lists files of one directory, by name, with the checksum of each.
class ChecksumList {
 public:
  explicit ChecksumList(ChecksumKind kind) : kind_(kind) {}

  // Reads the list of `directory`. Throws rp::Error (kBadInput), naming the list and the line, if
  // there is no list or if a line is not exactly as text() writes it. So a changed byte of a list
  // is either an error or changes an entry.
  static ChecksumList read(const std::filesystem::path& directory, ChecksumKind kind);

  [[nodiscard]] static const char* file_name(ChecksumKind kind);
  [[nodiscard]] ChecksumKind kind() const { return kind_; }

  // REQUIRES: `name` is a plain file name that is not listed.
  void add(const std::string& name, std::string hex);
  // Returns the content of the list's file: a line "<checksum>  <name>" for each file, in the order
  // of the names.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] const std::map<std::string, std::string>& entries() const { return entries_; }

  // Throws rp::Error (kBadInput), naming the file, if it is not listed or its listed checksum is
  // not `hex`.
  void expect(const std::filesystem::path& file, const std::string& hex) const;
  // Reads every listed file of `directory` from beginning to end. Throws rp::Error (kBadInput),
  // naming the first file that is missing or has another checksum.
  void verify(const std::filesystem::path& directory) const;
  // Verifies a directory by its own list if it has one; directories of other programs may have
  // none. The list must contain `files`.
  static void verify_if_listed(const std::filesystem::path& directory, ChecksumKind kind,
                               const std::vector<std::string>& files);

 private:
  ChecksumKind kind_;
  std::map<std::string, std::string> entries_;  // by name
};

}  // namespace rp
